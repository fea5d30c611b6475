"""What the examples leave in their run folders: every file that the default callbacks make of their data, opened."""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession
from PIL import Image

from trw_pipeline import trainer
from trw_pipeline.examples import brain, mnist
from trw_pipeline.explain.algorithms import ExplainableAlgorithm
from trw_pipeline.trainer import Trainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EPOCHS = 2
NB_DIGITS = 40


@dataclass
class Finished:
    folder: Path
    figures: dict[str, float]
    shown: str

    def files(self, pattern: str) -> list[str]:
        """Names below the run folder."""
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.glob(pattern) if path.is_file())

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def rows(self) -> list[dict[str, str]]:
        with (self.folder / "trainlog.csv").open(newline="") as file:
            return list(csv.DictReader(file))


def finished(module, options, folder: Path) -> Finished:
    """Trains where nobody has configured logging, as from the command line; here pytest has."""
    shown: list[str] = []
    logger = logging.getLogger("trw_pipeline")
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        result = module.train(options(epochs=EPOCHS, nb_workers=0, output=folder), shown.append)
    finally:
        logger.setLevel(level)
    return Finished(result.run_folder, dict(result.figures), "\n".join(shown))


@pytest.fixture(scope="module")
def mnist_run(tmp_path_factory):
    """Forty digits to train with, and as many to test."""
    whole = mnist.make_splits

    def few(options):
        return {name: split.subsample(NB_DIGITS) for name, split in whole(options).items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)  # hundreds of files, and a disk that others keep busy
        patch.setattr(mnist, "make_splits", few)
        yield finished(mnist, partial(mnist.MnistOptions, batch_size=32), tmp_path_factory.mktemp("mnist"))


@pytest.fixture(scope="module")
def brain_run(tmp_path_factory):
    """Two small patches of each volume."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)  # hundreds of files, and a disk that others keep busy
        patch.setattr(brain, "NB_PATCHES", 2)
        patch.setattr(brain, "PATCH_SIZE", 12)
        yield finished(brain, brain.BrainOptions, tmp_path_factory.mktemp("brain"))


@pytest.fixture(params=["mnist", "brain"])
def run(request) -> Finished:
    return request.getfixturevalue(f"{request.param}_run")


def assert_picture(path: Path, may_be_plain: bool) -> None:
    """It can be decoded, and not all of it has one colour."""
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        assert may_be_plain or any(low < high for low, high in image.convert("RGB").getextrema()), path


def test_every_picture_shows_something(run):
    pictures = run.files("**/*.png")
    assert pictures
    for name in pictures:
        # A patch may hold nothing but air, and a network that has hardly learned says the same everywhere.
        is_of_brain = name.startswith(("random_samples/brain", "worst_samples_by_epoch/brain"))
        assert_picture(run.folder / name, may_be_plain=is_of_brain)


def test_nothing_is_empty_and_nothing_half_written(run):
    for name in run.files("**/*"):
        assert (run.folder / name).stat().st_size > 0, name
        assert not name.endswith(".tmp")


def test_the_log_has_a_row_for_each_epoch_and_tensorboard_the_same_numbers(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = run.rows()
    assert [row["epoch"] for row in rows] == ["0", "1"]
    dataset, head = run.folder.name.removesuffix("_r0"), "digit" if "mnist" in run.folder.name else "tissue"
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    for split in ("train", "test"):
        column = f"{dataset}/{split}/{head}/loss"
        logged = [float(row[column]) for row in rows]
        assert [event.value for event in events.Scalars(column)] == pytest.approx(logged)


def test_the_model_and_its_result_can_be_loaded(run):
    model, result = Trainer.load_model(run.folder / "last.model", with_result=True)
    assert type(model).__name__ in ("DigitNet", "BrainNet")
    assert len(result["history"]) == EPOCHS + 1
    last = float(run.rows()[-1][next(name for name in run.rows()[0] if name.endswith("test/overall_loss/loss"))])
    (dataset,) = result["history"][-1]
    assert result["history"][-1][dataset]["test"]["overall_loss"]["loss"] == pytest.approx(last)


def test_the_model_in_onnx_says_what_the_model_says(run):
    session = InferenceSession(str(run.folder / "onnx/model.onnx"))
    (feature,) = session.get_inputs()
    shape = [3, *(axis for axis in feature.shape[1:])]
    values = np.random.default_rng(0).random(shape, dtype=np.float32)
    (found,) = session.run(None, {feature.name: values})
    model = Trainer.load_model(run.folder / "last.model")[0].eval()
    with torch.no_grad():
        (head,) = model({feature.name: torch.from_numpy(values)}).values()
    assert found.shape == tuple(head.output.shape)
    assert np.abs(found - head.output.numpy()).max() < 1e-4
    assert (run.folder / "tensorboard/model/events.out.tfevents.model").stat().st_size > 1000


def test_the_history_is_plotted_metric_by_metric(mnist_run, brain_run):
    assert mnist_run.files("history/*") == [
        f"history/mnist_{name}.png" for name in ("digit_classification_error", "digit_loss", "overall_loss_loss")
    ]
    assert brain_run.files("history/*") == [
        f"history/brain_{name}.png"
        for name in ("overall_loss_loss", "tissue_dice", "tissue_dice_1", "tissue_dice_2", "tissue_loss")
    ]


def test_the_best_of_each_metric_is_the_best_of_the_log(run):
    column = next(name for name in run.rows()[0] if name.endswith("test/overall_loss/loss"))
    losses = [float(row[column]) for row in run.rows()]
    best = "\t".join([*column.split("/"), "lower", str(min(losses)), str(losses.index(min(losses)))])
    assert best in run.text("best_history.txt").splitlines()


def test_the_classification_of_digits_is_reported_split_by_split(mnist_run, brain_run):
    for split in ("train", "test"):
        names = ["cm.png", "history.png", "report.txt"]  # no ROC: there are ten classes
        assert mnist_run.files(f"digit-mnist-{split}*") == [f"digit-mnist-{split}-{name}" for name in names]
    accuracy = mnist_run.figures["test accuracy"]
    assert mnist_run.text("digit-mnist-test-report.txt").startswith(f"accuracy: {accuracy:.4f}\n")
    assert not brain_run.files("*-report.txt"), "a segmentation has none"


def test_decisions_are_explained_by_every_algorithm(mnist_run, brain_run):
    algorithms = sorted(algorithm.name for algorithm in ExplainableAlgorithm)
    for found, sample in ((mnist_run, "mnist_test_s{}_digit"), (brain_run, "brain_train_s{}_tissue")):
        expected = [f"{sample.format(number)}_{name}_image_k0.png" for number in range(3) for name in algorithms]
        assert found.files("explained/*") == [f"explained/{name}" for name in expected]


def test_samples_are_exported_as_pictures_with_what_is_known_of_them(mnist_run, brain_run):
    for split in ("train", "test"):
        texts = mnist_run.files(f"random_samples/mnist/mnist_{split}_*.txt")
        assert len(texts) == 20
        assert mnist_run.files(f"random_samples/mnist/mnist_{split}_*_image.png") == [
            name.replace(".txt", "_image.png") for name in texts
        ]
        assert all(re.search(r"^target.*\b\d", mnist_run.text(name), re.MULTILINE) for name in texts)
    assert len(brain_run.files("random_samples/brain/brain_train_*.txt")) == 8, "two patches of four volumes"
    pictures = brain_run.files("random_samples/brain/brain_test_*image_*.png")
    assert len(pictures) == 3, "the middle slices of the volume"


def test_each_of_ten_digits_is_augmented_five_times(mnist_run, brain_run):
    pictures = mnist_run.files("augmentations/mnist/*_image.png")
    assert len(pictures) == 10 * 5
    by_sample: dict[str, set[bytes]] = {}
    for name in pictures:
        by_sample.setdefault(name.split("_a")[-2], set()).add((mnist_run.folder / name).read_bytes())
    assert len(by_sample) == 10
    assert all(len(contents) == 5 for contents in by_sample.values()), "each time anew"
    assert not brain_run.files("augmentations/**/*"), "patches have no uid"


def test_the_errors_are_as_many_as_the_report_counts(mnist_run, brain_run):
    nb_errors = round(NB_DIGITS * (1 - mnist_run.figures["test accuracy"]))
    assert len(mnist_run.files("errors/mnist/mnist_test_*.txt")) == nb_errors
    assert not brain_run.files("errors/**/*"), "a segmentation has none"


def test_the_worst_samples_are_followed_where_samples_have_a_uid(mnist_run, brain_run):
    worst = [f"worst_samples_by_epoch/mnist/mnist_{split}_digit.png" for split in ("test", "train")]
    assert [name for name in mnist_run.files("worst_samples_by_epoch/mnist/*_digit.png")] == worst
    assert len(mnist_run.files("worst_samples_by_epoch/mnist/mnist_test_digit_s*_image.png")) == NB_DIGITS
    assert brain_run.files("worst_samples_by_epoch/brain/*_tissue.png") == [
        "worst_samples_by_epoch/brain/brain_test_tissue.png"
    ]


def test_the_sources_are_in_the_archive(run):
    with zipfile.ZipFile(run.folder / "sources.zip") as archive:
        assert "trw_pipeline/examples/mnist.py" in archive.namelist()
        assert archive.read("trw_pipeline/trainer.py") == Path(trainer.__file__).read_bytes()


def test_the_report_is_of_the_finished_run_and_needs_nothing_else(run):
    page = run.text("report.html")
    assert json.loads(run.text("report.json"))
    assert "data:image/png;base64," in page
    assert 'http-equiv="refresh"' not in page, "a page of a run that is over is not read again"
    assert 'src="http' not in page


def test_the_learning_rates_are_plotted(run):
    assert run.files("lr_recorder/*") == [f"lr_recorder/{run.folder.name.removesuffix('_r0')}.png"]


def test_the_summary_of_the_model_has_its_layers(mnist_run, brain_run):
    """10 digits; 3 tissues: weights and biases as they are in the code."""
    assert "digit: (32, 10)" in mnist_run.text("model_summary.txt")
    assert "parameters: 206,922, trainable: 206,922" in mnist_run.text("model_summary.txt")
    assert "tissue: (1, 3, 49, 31, 95)" in brain_run.text("model_summary.txt")
    assert "parameters: 1,987, trainable: 1,987" in brain_run.text("model_summary.txt")


def test_the_log_of_the_run_tells_where_and_what_and_of_no_trouble(run):
    assert run.text("options.json")
    assert json.loads(run.text("options.json"))["options"]["epochs"] == EPOCHS
    trouble = [line for line in run.text("trainer.txt").splitlines() if " WARNING " in line or " ERROR " in line]
    assert [line for line in trouble if "sample_uid" not in line] == [], "patches of a brain have no uid"
