import logging
import math

import numpy as np
import pytest
import torch
from toy_samples import Endless, batches, chain, fit

from trw_pipeline.callbacks.data_summary import CallbackDataSummary
from trw_pipeline.sequences.sequence import SequenceArray
from trw_pipeline.training.options import create_default_options


def summary(split, *arguments, **keywords):
    """What is told of one split, feature -> text; the first line is that of `split`."""
    told = []
    callback = CallbackDataSummary(told.append, *arguments, **keywords)
    options = create_default_options("unused", 1, "cpu")
    callback(options, [], torch.nn.Identity(), {}, None, {"d": {"train": split}}, {}, [])
    assert len(told) == 1
    title, *lines = told[0].splitlines()
    assert title == "data summary"
    return {name.strip(): text for name, text in (line.split(": ", 1) for line in lines)}


def figures(text):
    """(least, greatest, mean, std) of a line."""
    parts = text.replace(" to ", ", ").replace("mean ", "").replace("std ", "").split(", ")
    return [float(part) for part in parts[-4:]]


def test_each_feature_has_its_kind_its_range_and_the_deviation_of_all_values():
    values = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 60.0]])
    split = [
        {"x": torch.from_numpy(values[:2]), "name": ["a", "b"], "rate": [1, 2], "side": 0.5},
        {"x": torch.from_numpy(values[2:]), "name": ["c"], "rate": [6], "side": 0.5},
    ]
    told = summary(split)
    assert told["d/train"] == "2 batches, 3 samples read"
    assert told["x"].startswith("float64 (2,), 1 to 60, ")
    assert figures(told["x"]) == pytest.approx([1, 60, values.mean(), values.std()], rel=1e-5)
    assert told["name"] == "str"
    assert figures(told["rate"]) == pytest.approx([1, 6, 3, math.sqrt(14 / 3)], rel=1e-5)
    assert told["side"] == "float of the whole batch, 0.5"


@pytest.mark.parametrize("nb", [1, 7, 100])
@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_the_deviation_does_not_depend_on_how_samples_are_batched(nb, offset):
    values = np.random.default_rng(0).normal(offset, 2.0, 100)
    told = summary([{"x": part} for part in np.array_split(values, nb)])
    assert figures(told["x"])[3] == pytest.approx(values.std(), rel=1e-5)


def test_values_that_are_not_finite_are_counted_and_left_out():
    told = summary([{"x": np.array([1.0, np.nan, 3.0, np.inf]), "y": np.full(4, np.nan)}])
    assert told["x"] == "float64 (), 1 to 3, mean 2, std 1, 2 not finite"
    assert told["y"] == "float64 (), 4 not finite"


def test_kinds_that_differ_are_told_and_so_are_bools_and_shapes():
    told = summary([{"x": [np.zeros(2), np.zeros(3), np.zeros(4), np.zeros(5)], "b": np.array([True] * 4)}])
    assert told["x"].startswith("float64 (2,) or float64 (3,) or float64 (4,) and others (1 times), 0 to 0")
    assert told["b"] == "bool (), 1 to 1, mean 1, std 0"


def test_what_is_stored_sparsely_has_its_shape():
    told = summary([{"x": torch.arange(3), "neighbours": torch.eye(3).to_sparse()}])
    assert told["neighbours"] == "float32 (3, 3) of the whole batch, sparse"


def test_without_statistics_one_sample_is_read_for_the_kinds_alone():
    read = []

    def note(batch):
        read.append(batch["sample_uid"].tolist())
        return batch

    split = SequenceArray({"x": np.ones((50, 3), np.float32)}).with_seed(0).map(note).batch(5)
    told = summary(split, False)
    assert told["x"] == "float32 (3,)"
    assert [len(uids) for uids in read] == [1]
    assert told["d/train"] == "number of batches unknown, 1 samples read"


def test_not_more_is_read_than_asked_for():
    for split in (Endless(), batches(nb_samples=50), chain(nb_samples=50)):
        assert summary(split, max_samples=7)["d/train"].endswith("7 samples read")
    assert summary(chain(nb_samples=300))["d/train"] == "150 batches, 200 samples read"
    assert summary(chain(nb_samples=300), max_samples=None)["d/train"] == "150 batches, 300 samples read"


def test_slow_data_do_not_keep_the_training_waiting():
    assert summary(batches(), max_time_s=0)["d/train"] == "3 batches, 2 samples read"
    assert summary(batches(), max_time_s=None)["d/train"] == "3 batches, 6 samples read"
    with pytest.raises(ValueError, match="max_time_s must not be negative, got -1"):
        CallbackDataSummary(max_time_s=-1)


def test_a_chain_is_sampled_at_random_so_that_sorted_data_are_seen_from_both_ends():
    split = SequenceArray({"x": np.repeat([0, 1], 100)}).with_seed(0)
    assert figures(summary(split, max_samples=20)["x"])[:2] == [0, 1]


def test_by_default_it_goes_to_the_log(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "trw_pipeline.callbacks.data_summary"):
        fit(tmp_path, [CallbackDataSummary()], {"d": {"train": batches()}}, "callbacks_pre_training_fn", 0)
    assert sum(record.message.startswith("data summary\nd/train: 3 batches") for record in caplog.records) == 1
