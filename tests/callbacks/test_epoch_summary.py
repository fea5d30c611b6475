import logging
import re

import pytest
from torch import nn

from trw_pipeline.callbacks.epoch_summary import CallbackEpochSummary
from trw_pipeline.training.options import create_default_options


def split(loss=None, error=None, **info):
    measured = {"info": {"samples_per_s": 1234.4, "wait_share": 0.256, **info}}
    if loss is not None:
        measured["overall_loss"] = {"loss": loss}
    if error is not None:
        measured["digit"] = {"loss": loss, "classification error": error}
    return measured


def said(history, num_epochs=10, **arguments):
    messages = []
    callback = CallbackEpochSummary(messages.append, **arguments)
    options = create_default_options(num_epochs=num_epochs)
    callback(options, history, nn.Linear(1, 1), {}, None, {}, {}, [], last_epoch=False)
    return messages


def test_elsewhere_one_line_for_each_split():
    history = [{"mnist": {"train": split(0.5, 0.125), "valid": split(0.25, 0.0625)}}]
    assert said(history, table=False) == [
        "epoch 0 (1 of 10) mnist/train: loss 0.5, error 12.50 %, samples/s 1234, waited for data 25.6 %, "
        "best loss so far 0.5 (epoch 0)\n"
        "epoch 0 (1 of 10) mnist/valid: loss 0.25, error 6.25 %, samples/s 1234, waited for data 25.6 %, "
        "best loss so far 0.25 (epoch 0)"
    ]


def test_on_a_terminal_one_table():
    (message,) = said([{"mnist": {"train": split(0.5, 0.125), "valid": split(0.25)}}], table=True)
    lines = message.splitlines()
    assert lines[0] == "epoch 0 (1 of 10)"
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines if line.strip() and "─" not in line]
    assert rows[1] == ["dataset", "split", "loss", "error", "samples/s", "waited", "best loss"]
    assert rows[2] == ["mnist", "train", "0.5", "12.50 %", "1234", "25.6 %", "0.5 (epoch 0)"]
    assert rows[3] == ["mnist", "valid", "0.25", "1234", "25.6 %", "0.25 (epoch 0)"]


def test_a_table_of_usual_names_fits_80_columns():
    (message,) = said([{"mnist": {"train": split(1.63691234, 0.53671), "test": split(0.25)}}], table=True)
    assert max(len(line) for line in message.splitlines()) <= 80


def test_a_table_is_plain_text_of_any_width():
    (message,) = said([{"a dataset [bold]with a name :smile: " * 5: {"train": split(0.5)}}], table=True)
    assert "\x1b" not in message
    assert "[bold]with a name :smile:" in message
    assert max(len(line) for line in message.splitlines()) > 180


def test_the_best_is_the_lowest_loss_and_the_earlier_of_equals():
    losses = [float("nan"), 3.0, 1.0, 1.0, 2.0]
    assert "best loss so far 1 (epoch 2)" in said([{"d": {"s": split(loss)}} for loss in losses], table=False)[0]


def test_a_split_that_did_not_run_has_no_line():
    history = [{"d": {"train": split(2.0), "valid": split(1.0)}}, {"d": {"train": split(3.0)}}]
    assert said(history, table=False)[0].splitlines() == [
        "epoch 1 (2 of 10) d/train: loss 3, samples/s 1234, waited for data 25.6 %, best loss so far 2 (epoch 0)"
    ]


def test_a_split_without_samples_says_only_what_is_known():
    empty = {"info": {"samples_per_s": 0.0, "wait_share": 0.0}}
    assert said([{"d": {"valid": empty}}], table=False) == [
        "epoch 0 (1 of 10) d/valid: samples/s 0, waited for data 0.0 %"
    ]


def test_the_best_need_not_be_tracked():
    history = [{"d": {"s": split(1.0)}}]
    for table in (False, True):
        assert "best" not in said(history, table=table, track_best_so_far=False)[0]


def test_errors_of_several_heads_are_named():
    measured = split(1.0) | {"a": {"classification error": 0.5}, "b": {"classification error": 0.25}}
    assert "error a 50.00 %, b 25.00 %" in said([{"d": {"s": measured}}], table=False)[0]


def test_after_the_last_epoch_comes_the_final_evaluation():
    assert said([{"d": {"s": split(1.0)}}] * 3, num_epochs=2, table=False)[0].startswith("final evaluation d/s: loss 1")


@pytest.mark.parametrize(("history", "expected"), [([], []), ([{}], ["epoch 0 (1 of 10): no split ran"])])
def test_without_figures(history, expected):
    assert said(history, table=False) == expected


def test_by_default_it_is_logged(caplog):
    with caplog.at_level(logging.INFO, logger="trw_pipeline"):
        callback = CallbackEpochSummary(table=False)
        options = create_default_options(num_epochs=1)
        callback(options, [{"d": {"s": split(1.0)}}], nn.Linear(1, 1), {}, None, {}, {}, [])
    assert [(record.levelname, record.name) for record in caplog.records] == [
        ("INFO", "trw_pipeline.callbacks.epoch_summary")
    ]


def test_a_percent_sign_in_a_name_does_no_harm_to_the_log(caplog):
    with caplog.at_level(logging.INFO, logger="trw_pipeline"):
        callback = CallbackEpochSummary(table=False)
        callback(create_default_options(), [{"100 %d": {"s": split(1.0)}}], nn.Linear(1, 1), {}, None, {}, {}, [])
    assert "100 %d/s" in caplog.text
