import csv
import json

import pytest
import torch
from torch import nn

from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.training.callback import create_hook_table
from trw_pipeline.training.optimizers import create_sgd_optimizers_scheduler_step_lr_fn
from trw_pipeline.training.run import Run


def new_run(folder, callback=None, **keywords):
    callback = CallbackTrainLog() if callback is None else callback
    run = Run(
        nn.Linear(1, 1),
        torch.device("cpu"),
        hooks=create_hook_table(per_epoch=[callback]),
        clock=iter(range(10**9)).__next__,
        log_dir=folder,
        **keywords,
    )
    run.fire("on_fit_start")
    return run


def log_epoch(run, measured):
    run.history.append(measured)
    run.fire("on_epoch_start")
    run.fire("on_epoch_end")
    run.epoch += 1


def metrics(**values):
    return {"d": {"s": {"y": values}}}


def rows(folder, filename="trainlog.csv"):
    with (folder / filename).open(newline="") as file:
        return list(csv.reader(file))


def test_one_row_an_epoch_with_the_documented_columns(tmp_path):
    run = new_run(tmp_path)
    log_epoch(run, metrics(loss=0.5))
    log_epoch(run, metrics(loss=0.25))
    assert rows(tmp_path) == [
        ["epoch", "time_s", "d/s/y/loss"],
        ["0", "1", "0.5"],
        ["1", "1", "0.25"],
    ]


def test_columns_stay_when_metrics_come_and_go(tmp_path):
    """LOG-2."""
    run = new_run(tmp_path)
    for epoch in range(6):
        measured = {"A": 1.0} if epoch < 5 else {}
        if epoch >= 3:
            measured["B"] = 2.0
        splits = {"train": {"y": measured}}
        if epoch % 2 == 0:
            splits["valid"] = {"y": {"A": 3.0}}
        log_epoch(run, {"d": splits})
    table = rows(tmp_path)
    assert table[0] == ["epoch", "time_s", "d/train/y/A", "d/valid/y/A", "d/train/y/B"]
    assert [row[2:] for row in table[1:]] == [
        ["1.0", "3.0", ""],
        ["1.0", "", ""],
        ["1.0", "3.0", ""],
        ["1.0", "", "2.0"],
        ["1.0", "3.0", "2.0"],
        ["", "", "2.0"],
    ]


def test_names_with_commas_quotes_and_line_breaks_survive(tmp_path):
    """LOG-2."""
    run = new_run(tmp_path)
    log_epoch(run, {'a,"b"\nc': {"s": {"y": {"loss": 0.5}}}})
    log_epoch(run, {'a,"b"\nc': {"s": {"y": {"loss": 0.25}}}})
    assert [row[2] for row in rows(tmp_path)] == ['a,"b"\nc/s/y/loss', "0.5", "0.25"]


def test_a_row_is_on_disk_when_its_epoch_ends(tmp_path):
    run = new_run(tmp_path)
    for epoch in range(3):
        log_epoch(run, metrics(loss=1.0))
        assert len(rows(tmp_path)) == epoch + 2


def test_the_learning_rate_is_that_of_the_epoch_and_exact(tmp_path):
    """T10."""
    run = new_run(tmp_path)
    optimizers, schedulers = create_sgd_optimizers_scheduler_step_lr_fn({"d": {}}, run.model, 1e-7, 1, 0.5)
    run.optimizers = optimizers
    for _ in range(2):
        run.history.append({})
        run.fire("on_epoch_start")
        optimizers["d"].step()
        schedulers["d"].step()
        run.fire("on_epoch_end")
    table = rows(tmp_path)
    assert table[0] == ["epoch", "time_s", "learning_rate[d]"]
    assert [float(row[2]) for row in table[1:]] == [1e-7, 5e-8]


def test_a_file_of_another_training_is_kept_under_another_name(tmp_path):
    """T24, LOG-3."""
    (tmp_path / "trainlog.csv").write_text("older\n")
    run = new_run(tmp_path)
    log_epoch(run, metrics(loss=1.0))
    assert (tmp_path / "trainlog.csv~").read_text() == "older\n"
    assert rows(tmp_path)[0] == ["epoch", "time_s", "d/s/y/loss"]
    newer = (tmp_path / "trainlog.csv").read_text()
    new_run(tmp_path).fire("on_fit_start")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"trainlog.csv~": newer}


def test_a_resumed_training_goes_on_in_the_same_file_with_the_same_columns(tmp_path):
    """T24, LOG-3."""
    first = new_run(tmp_path)
    log_epoch(first, metrics(loss=1.0, extra=2.0))
    second = new_run(tmp_path, resumed=True, epoch=1)
    log_epoch(second, metrics(loss=3.0))
    assert [row[2:] for row in rows(tmp_path)] == [["d/s/y/loss", "d/s/y/extra"], ["1.0", "2.0"], ["3.0", ""]]
    assert [path.name for path in tmp_path.iterdir()] == ["trainlog.csv"]


def test_the_file_has_the_name_it_is_given(tmp_path):
    log_epoch(new_run(tmp_path, CallbackTrainLog("my.csv")), metrics(loss=1.0))
    assert len(rows(tmp_path, "my.csv")) == 2


def test_the_end_of_the_name_is_the_format(tmp_path):
    run = new_run(tmp_path, CallbackTrainLog("logs/mine.jsonl"))
    log_epoch(run, metrics(loss=0.5))
    log_epoch(run, metrics(other=2.0))
    lines = [json.loads(line) for line in (tmp_path / "logs" / "mine.jsonl").read_text().splitlines()]
    assert lines == [{"epoch": 0, "time_s": 1, "d/s/y/loss": 0.5}, {"epoch": 1, "time_s": 1, "d/s/y/other": 2.0}]


@pytest.mark.parametrize("filename", ["trainlog", "trainlog.txt", ".csv"])
def test_a_name_without_a_format_is_refused(filename):
    with pytest.raises(ValueError, match=r"\.csv, \.jsonl, got '" + filename):
        CallbackTrainLog(filename)


def test_a_write_that_fails_is_an_error(tmp_path):
    run = new_run(tmp_path)
    (tmp_path / "trainlog.csv").mkdir()
    with pytest.raises(OSError, match="trainlog"):
        log_epoch(run, metrics(loss=1.0))
