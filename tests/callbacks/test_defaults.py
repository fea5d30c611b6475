"""The default callbacks: what they leave on disk, and what becomes of those whose extra is not installed."""

import csv
import importlib.util

import pytest
from PIL import Image
from toy_trainer import Net, fitting_in

from trw_pipeline.callbacks import defaults
from trw_pipeline.callbacks.defaults import (
    default_per_epoch_callbacks,
    default_post_training_callbacks,
    default_pre_training_callbacks,
)
from trw_pipeline.trainer import Trainer

DEFAULTS = (default_pre_training_callbacks, default_per_epoch_callbacks, default_post_training_callbacks)


@pytest.fixture
def fit(tmp_path):
    return fitting_in(tmp_path)


@pytest.fixture
def without(monkeypatch):
    """Pretends that a module is not installed."""
    find = importlib.util.find_spec

    def pretend(*modules):
        monkeypatch.setattr(defaults.importlib.util, "find_spec", lambda name: None if name in modules else find(name))
        defaults._warn.cache_clear()

    yield pretend
    defaults._warn.cache_clear()


def names(callbacks):
    return {type(callback).__name__ for callback in callbacks}


def test_the_default_callbacks_are_made_anew():
    for create in DEFAULTS:
        first, second = create(), create()
        assert [type(callback) for callback in first] == [type(callback) for callback in second]
        assert not {id(callback) for callback in first} & {id(callback) for callback in second}


@pytest.mark.slow
def test_what_the_defaults_leave_on_disk(fit, tmp_path):
    fit(Trainer())
    folder = tmp_path / "default_r0"
    written = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    metrics = ["classification_error", "loss", "sensitivity", "specificity"]
    assert written == sorted(
        ["last.model", "last.model.result", "model_summary.txt", "trainer.txt", "trainlog.csv"]
        + [f"y-d-{split}-{what}" for split in ("train", "valid") for what in ("cm.png", "history.png", "report.txt")]
        + [f"y-d-{split}-ROC.png" for split in ("train", "valid")]
        + [
            "best_history.txt",
            "lr_recorder/d.png",
            "tensorboard/events.out.tfevents.history",
            "history/d_overall_loss_loss.png",
        ]
        + [f"history/d_y_{name}.png" for name in metrics]
    )
    for path in folder.rglob("*.png"):
        with Image.open(path) as image:
            image.load()
            assert image.format == "PNG"
    with (folder / "trainlog.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    model, result = Trainer.load_model(folder / "last.model", with_result=True)
    assert isinstance(model, Net)
    assert float(rows[1]["d/valid/y/loss"]) == result["history"][1]["d"]["valid"]["y"]["loss"]


def test_what_is_switched_on_is_there():
    assert "CallbackLearningRateFinder" in names(default_pre_training_callbacks(with_lr_finder=True))
    more = default_per_epoch_callbacks(with_activation_statistics=True, convolutional_kernel_export_frequency=7)
    assert names(more) - names(default_per_epoch_callbacks()) == {
        "CallbackActivationStatistics",
        "CallbackExportConvolutionKernel",
    }
    (kernels,) = [callback for callback in more if type(callback).__name__ == "CallbackExportConvolutionKernel"]
    assert kernels.export_frequency == 7


def test_the_logger_takes_what_the_callbacks_tell(fit):
    told = []
    fit(
        Trainer(
            callbacks_pre_training_fn=lambda: default_pre_training_callbacks(told.append),
            callbacks_per_epoch_fn=lambda: default_per_epoch_callbacks(told.append, with_activation_statistics=True),
            callbacks_post_training_fn=None,
        ),
        num_epochs=1,
    )
    for words in ("model Net", "epoch 0 (1 of 1)", "activations after epoch 0"):
        assert any(words in text for text in told), words


@pytest.mark.slow
def test_a_training_without_any_extra_goes_on_and_says_once_what_is_left_out(fit, without, caplog, tmp_path):
    without("PIL", "matplotlib", "tensorboard", "captum", "onnx", "onnxscript")
    for _ in range(2):
        fit(Trainer(), num_epochs=1)
    told = [record.message for record in caplog.records if "left out of the default callbacks" in record.message]
    assert len(told) == len(set(told)) >= 3
    for name, extra in (("CallbackExportHistory", "plot"), ("CallbackTensorboardRecordHistory", "tensorboard")):
        assert any(name in text and f"pip install 'trw_pipeline[{extra}" in text for text in told)
    assert "left out of the default callbacks" in (tmp_path / "default_r0" / "trainer.txt").read_text()
    assert (tmp_path / "default_r1" / "last.model").exists()


def test_every_callback_that_needs_an_extra_names_one_that_there_is():
    from importlib.metadata import metadata

    extras = set(metadata("trw_pipeline").get_all("Provides-Extra"))
    assert {extra for needs in defaults._NEEDS.values() for extra in needs} <= set(defaults._MODULES) <= extras
    assert all(importlib.util.find_spec(module) for module in defaults._MODULES.values())
