"""The default callbacks: what they leave on disk, and what becomes of those whose extra is not installed."""

import csv
import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from toy_trainer import Net, fitting_in

from trw_pipeline.callbacks import defaults
from trw_pipeline.callbacks.defaults import (
    default_per_epoch_callbacks,
    default_post_training_callbacks,
    default_pre_training_callbacks,
    folder_of_program,
)
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.embedding import OutputEmbedding
from trw_pipeline.outputs.regression import OutputRegression
from trw_pipeline.trainer import Trainer

DEFAULTS = (default_pre_training_callbacks, default_per_epoch_callbacks, default_post_training_callbacks)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """The callbacks write a hundred small files each time, and other programs may keep the disk busy."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


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
    expected = [
        "best_history.txt",
        "last.model",
        "last.model.result",
        "model_summary.txt",
        "trainer.txt",
        "trainlog.csv",
    ]
    expected += ["lr_recorder/d.png", "tensorboard/events.out.tfevents.history", "history/d_overall_loss_loss.png"]
    expected += ["report.html", "report.json"]
    expected += ["onnx/model.onnx", "tensorboard/model/events.out.tfevents.model"]
    expected += [f"history/d_y_{name}.png" for name in metrics]
    reports = ("ROC.png", "cm.png", "history.png", "report.txt")
    expected += [f"y-d-{split}-{name}" for split in ("train", "valid") for name in reports]
    algorithms = ("Gradient", "IntegratedGradients")  # of vectors, and a model without convolutions and ReLUs
    expected += [f"explained/d_valid_s{n}_y_{name}_x_k0.png" for n in range(3) for name in algorithms]
    expected += ["sources.zip"]
    others = ("augmentations", "errors", "random_samples", "worst_samples_by_epoch")
    assert [name for name in written if not name.startswith(others)] == sorted(expected)
    assert {name.partition("/")[0] for name in written} >= {"random_samples", "worst_samples_by_epoch"}
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


class Numbers(nn.Module):
    """Two regressions, of which nobody knows which one to explain."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, batch):
        y = self.inner(batch["x"])
        return {"a": OutputRegression(y, "y"), "b": OutputRegression(2 * y, "y"), "e": OutputEmbedding(y)}


class Words(nn.Module):
    """Of whole numbers, which have no gradient."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Embedding(10, 2)

    def forward(self, batch):
        return {"y": OutputClassification(self.inner(batch["words"]).mean(1), "truth")}


class Draws(Net):
    def forward(self, batch):
        return super().forward({**batch, "x": batch["x"] + torch.rand(3)})


def split_of(nb_samples):
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "x": torch.randn(2, 3, generator=generator),
            "y": torch.randn(2, 1, generator=generator),
            "words": torch.randint(10, (2, 4), generator=generator),
            "truth": torch.tensor([0, 1]),
            "name": ["a/b", "$x$"],
        }
        for _ in range(nb_samples // 2)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("model", [Numbers, Words, Draws])
@pytest.mark.parametrize("splits", [("train",), ("train", "valid", "empty")])
def test_the_defaults_end_no_training_and_change_nothing_in_it(tmp_path, model, splits):
    """Whatever the model and its data: without uids, with one split, with a split without batches."""

    def inputs():
        return {"d": {name: split_of(0 if name == "empty" else 6) for name in splits}}

    losses = []
    for callbacks in (Trainer(), Trainer(None, None, None, None, None)):
        torch.manual_seed(1)
        _, result = fitting_in(tmp_path)(callbacks, inputs=inputs, model_fn=lambda options: model(), num_epochs=2)
        losses.append([epoch["d"]["train"]["overall_loss"]["loss"] for epoch in result["history"]])
    assert losses[0] == losses[1]


def program_at(path, monkeypatch):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(path), raising=False)


def test_the_sources_of_a_program_are_those_of_its_package_or_beside_its_script(tmp_path, monkeypatch):
    ours = Path(defaults.__file__).parents[1]
    program_at(tmp_path / "script" / "train.py", monkeypatch)
    assert folder_of_program() == tmp_path / "script"
    for package in ("study", "study/nets"):
        program_at(tmp_path / package / "__init__.py", monkeypatch)
    program_at(tmp_path / "study" / "nets" / "__main__.py", monkeypatch)
    assert folder_of_program() == tmp_path / "study"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", pytest.__file__)
    assert folder_of_program() == ours, "a library"
    monkeypatch.setattr(defaults, "_MOST_FILES", 2)
    program_at(tmp_path / "home" / "data" / "train.py", monkeypatch)
    (tmp_path / "home" / "data" / "a").touch()
    assert folder_of_program() == tmp_path / "home" / "data", "two files"
    (tmp_path / "home" / "data" / "b").touch()
    assert folder_of_program() == ours, "three"
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    assert folder_of_program() == ours, "a notebook"


def test_what_is_switched_on_is_there():
    assert "CallbackLearningRateFinder" in names(default_pre_training_callbacks(with_lr_finder=True))
    assert "CallbackExportAugmentations" not in names(default_pre_training_callbacks(with_export_augmentations=False))
    less = default_post_training_callbacks(export_errors=False, explain_decision=False)
    assert names(default_post_training_callbacks()) - names(less) == {
        "CallbackExportClassificationErrors",
        "CallbackExplainDecision",
    }
    assert "CallbackWorstSamplesByEpoch" not in names(default_per_epoch_callbacks(with_worst_samples_by_epoch=False))
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
