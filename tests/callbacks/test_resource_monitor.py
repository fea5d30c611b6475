import csv
import threading

import psutil
import pytest
import torch
from toy_trainer import fitting_in, trainer

from trw_pipeline import resources
from trw_pipeline.callbacks.resource_monitor import CallbackResourceMonitor, gpu_names
from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.training.callback import Callback


@pytest.fixture
def fit(tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "_SAMPLE_S", 60.0)  # however busy the machine is
    return fitting_in(tmp_path)


def test_each_split_has_its_figures_in_the_history_and_in_the_log(fit, tmp_path):
    """T40: splits much shorter than the interval have samples all the same, and wait for none of its length."""
    _, result = fit(trainer(CallbackResourceMonitor(3600), CallbackTrainLog()))
    for epoch in result["history"]:
        for split in ("train", "valid"):
            figures = epoch["d"][split]["resources"]
            assert figures["n"] >= 2
            assert 0 < figures["cpu_rss_min"] <= figures["cpu_rss"] <= figures["cpu_rss_max"]
            assert figures["cpu_processes"] >= 1
    with (tmp_path / "default_r0" / "trainlog.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    logged = [float(row["d/valid/resources/cpu_rss"]) for row in rows]
    assert logged == [epoch["d"]["valid"]["resources"]["cpu_rss"] for epoch in result["history"][:2]]


def test_it_is_one_thread_that_ends_with_the_training(fit):
    names = []

    class Looks(Callback):
        def on_epoch_end(self, run):
            names.append([thread.name for thread in threading.enumerate()])

    fit(trainer(CallbackResourceMonitor(), Looks()))
    assert [each.count("trw-resources") for each in names] == [1, 1]
    assert "trw-resources" not in [thread.name for thread in threading.enumerate()]


def test_a_machine_that_tells_nothing_leaves_the_training_as_it_is(fit, monkeypatch, caplog):
    """LOG-5."""

    def refuse():
        raise PermissionError("not here")

    torch.manual_seed(0)
    expected, _ = fit(trainer())
    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    torch.manual_seed(0)
    model, result = fit(trainer(CallbackResourceMonitor()))
    assert torch.equal(model.inner.weight, expected.inner.weight)
    assert all("resources" not in split for epoch in result["history"] for split in epoch["d"].values())
    assert len([record for record in caplog.records if record.name == "trw_pipeline.resources"]) == 1


def test_an_interval_that_is_none_is_refused_at_once():
    with pytest.raises(ValueError, match="interval_s must be positive and finite, got 0"):
        CallbackResourceMonitor(0)


def test_a_device_that_is_not_cudas_has_no_gpu():
    assert gpu_names(torch.device("cpu")) == []
