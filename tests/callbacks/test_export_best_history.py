import csv
import math

from torch import nn

from trw_pipeline.callbacks.export_best_history import CallbackExportBestHistory
from trw_pipeline.training.options import create_default_options


def epoch(error, sensitivity):
    return {"classification error": error, "sensitivity": sensitivity}


HISTORY = [
    {"d": {"train": {"y": {"loss": 3.0}}, "valid": {"y": epoch(0.5, 0.25), "info": {"time_s": 1.0}}}},
    {"d": {"train": {"y": {"loss": 0.1 + 0.2}}}},
    {"d": {"train": {"y": {"loss": math.nan}}, "valid": {"y": epoch(0.25, 0.75), "resources": {"n": 1.0}}}},
    {"d": {"train": {"y": {"loss": 0.5}}, "valid": {"y": epoch(0.25, 0.5)}}},
]
FINAL = {"d": {"train": {"y": {"loss": 0.0}}, "valid": {"y": epoch(0.0, 1.0)}}}


def export(folder, history, *arguments, num_epochs=4):
    options = create_default_options(folder, num_epochs)
    options["workflow_options"]["current_logging_directory"] = str(folder)
    CallbackExportBestHistory(*arguments)(options, history, nn.Linear(1, 1), {}, None, {}, {}, [])


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return [tuple(row.values()) for row in csv.DictReader(file, dialect="excel-tab")]


def test_errors_are_best_when_low_and_sensitivities_when_high(tmp_path):
    export(tmp_path, [*HISTORY, FINAL])
    assert rows(tmp_path / "best_history.txt") == [
        ("d", "train", "y", "loss", "lower", repr(0.1 + 0.2), "1"),
        ("d", "valid", "y", "classification error", "lower", "0.25", "2"),
        ("d", "valid", "y", "sensitivity", "higher", "0.75", "2"),
    ]


def test_metrics_can_be_left_out_and_the_file_can_have_another_name(tmp_path):
    export(tmp_path, HISTORY, "best.tsv", ["loss", "sensitivity"])
    assert [path.name for path in tmp_path.iterdir()] == ["best.tsv"]
    assert [row[3] for row in rows(tmp_path / "best.tsv")] == ["classification error"]


def test_a_final_evaluation_that_is_all_counts_as_an_epoch(tmp_path):
    export(tmp_path, [FINAL], num_epochs=0)
    assert [row[3:] for row in rows(tmp_path / "best_history.txt")] == [
        ("loss", "lower", "0.0", "0"),
        ("classification error", "lower", "0.0", "0"),
        ("sensitivity", "higher", "1.0", "0"),
    ]


def test_a_metric_that_was_never_a_number_has_no_best_value(tmp_path):
    export(tmp_path, [{"d": {"train": {"y": {"loss": math.nan}}}}])
    assert rows(tmp_path / "best_history.txt") == [("d", "train", "y", "loss", "lower", "", "")]


def test_names_with_tabs_and_quotes_read_back(tmp_path):
    export(tmp_path, [{'d\t"': {"train": {"y": {"loss": 1.0}}}}])
    assert rows(tmp_path / "best_history.txt")[0][0] == 'd\t"'
