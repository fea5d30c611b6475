import json
import math

import pytest

from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.reporting.row_files import CsvFile
from trw_pipeline.reporting.run_record import RECORD_FILE, RunRecord, Stages, read_run

LOSSES = [{"d": {"train": {"overall_loss": {"loss": loss}, "y": {"loss": loss, "error": 0.5}}}} for loss in (2.0, 1.0)]


def record(**changed):
    return RunRecord(**{"name": "r", "state": "completed", "updated": 5.0, "nb_epochs": 2, "epochs": LOSSES, **changed})


def test_what_is_written_is_read_again(tmp_path):
    whole = record(
        error="ValueError: ü",
        started=1.5,
        elapsed_s=2.5,
        final={"d": {"train": {"y": {"error": 0.25}}}},
        learning_rates=[{"d": 0.1}, {}],
        stages={"d/train": Stages(limit="load limits", description="Array", figures={"0:Array": {"items": 3.0}})},
        model=[("", "Net", 10, 5), ("a", "Linear", 10, 5)],
        options={"a.b": "1"},
        versions={"python": "3"},
    )
    whole.write(tmp_path)
    assert read_run(tmp_path) == whole


def test_numbers_that_are_not_finite_are_kept_in_json_that_every_program_reads(tmp_path):
    values = [{"d": {"train": {"y": {"loss": value}}}} for value in (math.nan, math.inf, -math.inf)]
    record(epochs=values).write(tmp_path)
    json.loads((tmp_path / RECORD_FILE).read_text(), parse_constant=pytest.fail)
    nan, *others = [value for _, value in read_run(tmp_path).curve(("d", "train", "y", "loss"))]
    assert math.isnan(nan)
    assert others == [math.inf, -math.inf]


def test_a_loss_that_is_the_overall_loss_is_not_listed_twice():
    assert record().metrics() == [("d", "train", "overall_loss", "loss"), ("d", "train", "y", "error")]
    other = [{"d": {"train": {"overall_loss": {"loss": 3.0}, "y": {"loss": 1.0}, "z": {"loss": 2.0}}}}]
    assert len(record(epochs=other).metrics()) == 3
    nan = [{"d": {"train": {"overall_loss": {"loss": math.nan}, "y": {"loss": math.nan}}}}]
    assert len(record(epochs=nan).metrics()) == 1


def test_measurements_of_machine_and_loop_are_no_metrics():
    epochs = [{"d": {"train": {"info": {"time_s": 1.0}, "resources": {"n": 2.0}, "y": {"error": 1.0}}}}]
    assert record(epochs=epochs).metrics() == [("d", "train", "y", "error")]


def test_a_curve_leaves_out_epochs_that_have_it_not():
    epochs = [{"d": {"valid": {"y": {"error": 1.0}}}}, {"d": {}}, {"d": {"valid": {"y": {"error": 0.5}}}}]
    assert record(epochs=epochs).curve(("d", "valid", "y", "error")) == [(0, 1.0), (2, 0.5)]


def test_a_run_with_only_a_log_is_read_from_it(tmp_path):
    folder = tmp_path / "old_r3"
    folder.mkdir()
    log = CsvFile(folder / CallbackTrainLog().filename)
    for epoch, loss in enumerate((2.0, math.nan)):
        log.append({"epoch": epoch, "time_s": 1.5, "learning_rate[d]": 0.1, "d/train/y/a/b loss": loss})
    found = read_run(folder)
    assert (found.name, found.state, found.elapsed_s, found.nb_epochs) == ("old_r3", "unknown", 3.0, 2)
    assert found.epochs[0] == {"d": {"train": {"y": {"a/b loss": 2.0}}}}
    assert math.isnan(found.epochs[1]["d"]["train"]["y"]["a/b loss"])
    assert found.learning_rates == [{"d": 0.1}, {"d": 0.1}]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (None, "", "must have report.json .* or trainlog.csv"),
        ("report.json", "{", "not as CallbackReport writes it"),
        ("report.json", "[]", "not as CallbackReport writes it"),
        ("report.json", '{"format": 2}', "another format"),
        ("report.json", '{"format": 1}', "not as CallbackReport writes it"),
        ("trainlog.csv", "epoch,d/t/y/loss\n0,high\n", "not as CallbackTrainLog writes it"),
    ],
)
def test_what_is_no_run_is_refused_with_its_name(tmp_path, name, content, says):
    if name is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=says) as caught:
        read_run(tmp_path)
    assert str(tmp_path) in str(caught.value)
