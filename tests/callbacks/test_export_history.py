import pytest
from PIL import Image
from torch import nn

from trw_pipeline.callbacks.export_history import CallbackExportHistory
from trw_pipeline.training.options import create_default_options

HISTORY = [
    {"mnist": {"train": {"y": {"loss": 1.0}}, "valid": {"y": {"loss": 2.0, "classification error": 0.5}}}},
    {"mnist": {"train": {"y": {"loss": 0.5}}}},
]


def export(folder, history, *arguments):
    options = create_default_options(folder)
    options["workflow_options"]["current_logging_directory"] = str(folder)
    CallbackExportHistory(*arguments)(options, history, nn.Linear(1, 1), {}, None, {}, {}, [])


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))


@pytest.mark.slow
def test_a_picture_for_each_dataset_output_and_metric(tmp_path):
    export(tmp_path, HISTORY)
    assert files(tmp_path) == ["history/mnist_y_classification_error.png", "history/mnist_y_loss.png"]
    for path in tmp_path.rglob("*.png"):
        with Image.open(path) as image:
            image.load()
            assert image.format == "PNG"


@pytest.mark.slow
def test_folder_and_metrics_can_be_chosen(tmp_path):
    export(tmp_path, HISTORY, "curves", ["loss"])
    assert files(tmp_path) == ["curves/mnist_y_loss.png"]


@pytest.mark.slow
def test_names_that_are_no_file_names_are_cleaned(tmp_path):
    export(tmp_path, [{"a/b": {"train": {"../y": {"loss*": 1.0}}}}])
    assert files(tmp_path) == ["history/ab_..y_loss.png"]


@pytest.mark.slow
def test_a_final_evaluation_is_no_epoch_and_measurements_of_the_loop_are_no_metrics(tmp_path):
    options = create_default_options(tmp_path, num_epochs=1)
    options["workflow_options"]["current_logging_directory"] = str(tmp_path)
    first = {"d": {"train": {"y": {"loss": 1.0}, "info": {"nb_samples": 4.0}, "resources": {"n": 2.0}}}}
    last = {"d": {"train": {"y": {"loss": 1.0, "only in the last": 2.0}}}}
    CallbackExportHistory()(options, [first, last], nn.Linear(1, 1), {}, None, {}, {}, [])
    assert files(tmp_path) == ["history/d_y_loss.png"]


def test_nothing_to_plot_nothing_written(tmp_path):
    export(tmp_path, [{}])
    assert list(tmp_path.iterdir()) == []
