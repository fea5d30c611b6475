import re

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import metrics
from torch import nn

from trw_pipeline.callbacks.export_classification_report import CallbackExportClassificationReport
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.regression import OutputRegression
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.optimizers import create_sgd_optimizers_fn
from trw_pipeline.training.options import create_default_options

TEXT_ONLY = {"with_confusion_matrix": False, "with_ROC": False, "with_history": False}


class Net(nn.Module):
    """Scores of the classes are the features, so that what is predicted is known."""

    def __init__(self, **arguments):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.arguments = arguments

    def forward(self, batch):
        scores = batch["x"] * self.factor
        return {
            "y": OutputClassification(scores, "truth", **self.arguments),
            "other": OutputRegression(scores.mean(1, keepdim=True), "number"),
        }


def split(truth, found, nb_classes):
    scores = torch.eye(nb_classes)[torch.tensor(found)]
    return [{"x": scores, "truth": torch.tensor(truth), "number": torch.zeros(len(truth), 1)}]


TWO = split([0, 0, 1, 1, 1], [0, 1, 1, 1, 0], 2)
FOUR = split([0, 0, 1, 3, 3], [0, 2, 1, 3, 1], 4)
NAMES = {"d": {"valid": {"output_mappings": {"truth": {"mappinginv": {0: "cat", 1: "dog <small>"}}}}}}


def fit(folder, callback, batches=TWO, where="callbacks_post_training_fn", infos=NAMES, num_epochs=1, net=None):
    lists = dict.fromkeys(("callbacks_per_epoch_fn", "callbacks_pre_training_fn", "callbacks_post_training_fn"))
    return Trainer(**lists | {where: lambda: [callback]}).fit(
        create_default_options(folder, num_epochs, "cpu"),
        lambda: ({"d": {"train": batches, "valid": batches}}, infos),
        lambda options: net or Net(),
        lambda datasets, model: create_sgd_optimizers_fn(datasets, model, 0.0),
    )


def files(folder):
    return sorted(path.name for path in (folder / "default_r0").iterdir() if path.name != "trainer.txt")


@pytest.mark.slow
def test_each_classification_of_each_split_has_its_files(tmp_path):
    fit(tmp_path, CallbackExportClassificationReport())
    assert files(tmp_path) == sorted(
        f"y-d-{name}-{kind}"
        for name in ("train", "valid")
        for kind in ("cm.png", "ROC.png", "report.txt", "history.png")
    )
    for path in (tmp_path / "default_r0").glob("*.png"):
        with Image.open(path) as image:
            image.load()
            assert image.format == "PNG"


@pytest.mark.slow
def test_more_classes_have_no_roc(tmp_path):
    fit(tmp_path, CallbackExportClassificationReport(with_history=False), FOUR)
    assert "y-d-valid-cm.png" in files(tmp_path)
    assert not [name for name in files(tmp_path) if "ROC" in name]


@pytest.mark.slow
def test_a_split_of_one_class_has_no_roc(tmp_path):
    fit(tmp_path, CallbackExportClassificationReport(False, True, False, False), split([1, 1], [0, 1], 2))
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        ({"with_report": True}, ["report.txt"]),
        pytest.param({"with_confusion_matrix": True}, ["cm.png"], marks=pytest.mark.slow),
        pytest.param({"with_ROC": True}, ["ROC.png"], marks=pytest.mark.slow),
        pytest.param({"with_history": True}, ["history.png"], marks=pytest.mark.slow),
    ],
)
def test_each_kind_of_file_can_be_had_alone(tmp_path, arguments, kinds):
    none = dict.fromkeys(("with_confusion_matrix", "with_ROC", "with_history", "with_report"), False)
    fit(tmp_path, CallbackExportClassificationReport(**none | arguments))
    assert files(tmp_path) == [f"y-d-{name}-{kind}" for name in ("train", "valid") for kind in kinds]


def text_of(folder, split_name="valid"):
    return (folder / "default_r0" / f"y-d-{split_name}-report.txt").read_text(encoding="utf-8")


def test_the_text_tells_the_figures_of_scikit_learn_by_the_names_of_the_classes(tmp_path):
    fit(tmp_path, CallbackExportClassificationReport(**TEXT_ONLY))
    text = text_of(tmp_path)
    truth, found = [0, 0, 1, 1, 1], [0, 1, 1, 1, 0]
    shown = dict(re.findall(r"^(\w+): ([\d.]+)$", text, re.MULTILINE))
    assert float(shown["accuracy"]) == pytest.approx(metrics.accuracy_score(truth, found), abs=1e-4)
    assert float(shown["sensitivity"]) == pytest.approx(metrics.recall_score(truth, found), abs=1e-4)
    assert float(shown["auroc"]) == pytest.approx(metrics.roc_auc_score(truth, found), abs=1e-4)
    precision = metrics.precision_score(truth, found, average=None)
    assert re.search(rf"^ *cat +{precision[0]:.2f} +0\.50 +0\.50 +2$", text, re.MULTILINE)
    assert re.search(rf"^ *dog <small> +{precision[1]:.2f} +0\.67 +0\.67 +3$", text, re.MULTILINE)
    assert "1 of 2: cat taken for dog <small>" in text
    assert text.splitlines()[-2:] == ["0 cat          1 1", "1 dog <small>  1 2"]
    assert "cat" not in text_of(tmp_path, "train")  # of which nobody told the names


def test_of_many_classes_the_text_has_no_matrix(tmp_path):
    callback = CallbackExportClassificationReport(**TEXT_ONLY)
    fit(tmp_path / "many", callback, split([0, 7], [0, 40], 41))
    assert "confusion matrix" not in text_of(tmp_path / "many")
    assert "1 of 1: 7 taken for 40" in text_of(tmp_path / "many")
    fit(tmp_path / "some", callback, split([0, 7], [0, 39], 40))
    assert "confusion matrix" in text_of(tmp_path / "some")


def test_samples_of_no_class_are_not_counted(tmp_path):
    fit(tmp_path, CallbackExportClassificationReport(**TEXT_ONLY), split([0, -100, 1, 1], [0, 0, 1, 0], 2))
    assert text_of(tmp_path).splitlines()[-2:] == ["0 cat          1 0", "1 dog <small>  1 1"]


def test_what_the_head_predicts_counts_not_the_highest_score(tmp_path):
    net = Net(output_postprocessing=lambda raw: torch.ones(len(raw), dtype=torch.long))
    fit(tmp_path, CallbackExportClassificationReport(**TEXT_ONLY), net=net)
    assert text_of(tmp_path).splitlines()[-2:] == ["0 cat          0 2", "1 dog <small>  0 3"]


def test_one_score_counts_for_class_1(tmp_path):
    class OneScore(Net):
        def forward(self, batch):
            score = (batch["x"][:, 1] - batch["x"][:, 0]) * self.factor
            return {
                "y": OutputClassification(
                    score,
                    "truth",
                    criterion_fn=lambda: lambda raw, truth: (raw - truth) ** 2,
                    output_postprocessing=lambda raw: (raw > 0).long(),
                    metrics=[],
                )
            }

    fit(tmp_path, CallbackExportClassificationReport(**TEXT_ONLY), net=OneScore())
    assert text_of(tmp_path).splitlines()[-2:] == ["0 cat          1 1", "1 dog <small>  1 2"]
    assert "auroc: 0.5833" in text_of(tmp_path)


def test_predictions_that_are_no_classes_are_warned_of_and_end_nothing(tmp_path, caplog):
    net = Net(output_postprocessing=lambda raw: torch.full((len(raw),), 7), metrics=[])
    fit(tmp_path, CallbackExportClassificationReport(), net=net)
    assert files(tmp_path) == []
    assert "no report on y of d/valid" in caplog.text


def test_a_head_that_collects_nothing_has_no_files(tmp_path):
    fit(tmp_path, CallbackExportClassificationReport(), net=Net(collect_output=False))
    assert files(tmp_path) == []


def classes_in(callback):
    """Split -> epoch -> error of each class."""
    return {key[1]: key[3] for key in callback.state_dict()["errors"]}


@pytest.mark.slow
def test_in_each_epoch_the_error_of_each_class_is_collected(tmp_path):
    callback = CallbackExportClassificationReport(False, False, True, False)
    fit(tmp_path, callback, FOUR, "callbacks_per_epoch_fn", num_epochs=3)
    errors = classes_in(callback)["valid"]
    assert list(errors) == [0, 1, 2]
    np.testing.assert_equal(errors[2], [0.5, 0.0, np.nan, 0.5])
    # A second training begins anew, and a resumed one goes on.
    fresh = CallbackExportClassificationReport(False, False, True, False)
    fresh.load_state_dict(callback.state_dict())
    fit(tmp_path / "other", callback, FOUR, "callbacks_per_epoch_fn", num_epochs=1)
    assert list(classes_in(callback)["valid"]) == [0]
    fit(tmp_path / "resumed", fresh, FOUR, "callbacks_per_epoch_fn", num_epochs=1)
    assert list(classes_in(fresh)["valid"]) == [0, 1, 2]


@pytest.mark.slow
def test_the_curves_are_those_of_the_worst_classes(tmp_path, monkeypatch):
    from trw_pipeline.callbacks import export_classification_report as file

    plots = {}
    monkeypatch.setattr(file, "plot_history", lambda path, curves, title, ylabel: plots.update({path.name: curves}))
    nb_classes = 12
    batches = split(list(range(nb_classes)) * 2, list(range(nb_classes)) + [5] * nb_classes, nb_classes)
    callback = CallbackExportClassificationReport(False, False, True, False)
    fit(tmp_path, callback, batches, "callbacks_per_epoch_fn", num_epochs=2)
    curves = plots["y-d-valid-history.png"]
    assert list(curves) == ["all classes", "cat", "dog <small>", *map(str, (2, 3, 4, 6, 7, 8, 9, 10))]
    assert curves["all classes"] == [(0, pytest.approx(11 / 24)), (1, pytest.approx(11 / 24))]
    assert curves["cat"] == [(0, 0.5), (1, 0.5)]


def test_a_training_without_outputs_has_no_files(tmp_path):
    options = create_default_options(tmp_path)
    options["workflow_options"]["current_logging_directory"] = str(tmp_path)
    CallbackExportClassificationReport()(options, [], Net(), {}, None, {}, {}, [])
    assert list(tmp_path.iterdir()) == []
