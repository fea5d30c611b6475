"""States are plain data, and a damaged one is found out before anything is done with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from trw_pipeline.errors import CheckpointError
from trw_pipeline.executors.job import plain_uid
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray


def chain():
    return SequenceArray({"x": np.arange(6)}, SamplerSequential()).with_seed(3).map(lambda batch: batch).batch(2)


def saved():
    sequence = chain()
    iterator = iter(sequence)
    next(iterator)
    return sequence.state_dict()


@pytest.mark.parametrize("name", ["seed", "epoch", "position", "held"])
def test_a_state_without_one_of_its_parts_is_refused(name):
    state = saved()
    del state[name]
    with pytest.raises(CheckpointError, match=name):
        chain().load_state_dict(state)


DAMAGES = [
    ("seed", "3"),
    ("seed", None),
    ("epoch", None),
    ("epoch", -1),
    ("epoch", 1.5),
    ("position", 5),
    ("position", []),
    ("held", []),
    ("held", None),
    ("held", [1, 2, 3]),
]


@pytest.mark.parametrize(("name", "value"), DAMAGES)
def test_a_part_of_another_kind_is_refused_by_its_name(name, value):
    with pytest.raises(CheckpointError, match=name):
        chain().load_state_dict({**saved(), name: value})


def test_a_refused_state_leaves_the_sequence_as_it_was():
    sequence = chain()
    with pytest.raises(CheckpointError):
        sequence.load_state_dict({**saved(), "seed": 99, "held": []})
    assert sequence.seed == 3
    assert len(list(sequence)) == 3


@pytest.mark.parametrize(("name", "value"), [("count", None), ("source", 5), ("source", None)])
def test_a_position_damaged_further_in_is_refused_when_the_epoch_opens(name, value):
    state = saved()
    state["position"][name] = value
    sequence = chain()
    sequence.load_state_dict(state)
    with pytest.raises(CheckpointError):
        iter(sequence)


@pytest.mark.parametrize(
    ("uids", "plain"),
    [
        ([np.int64(7)], 7),
        ([np.float32(0.5), 2], [0.5, 2]),
        (np.array(["a"]), "a"),
        ([Path("scans") / "a.nii"], "scans/a.nii"),
        ([b"scan7"], "scan7"),
        ([b"\xff"], "\\xff"),
        ([(np.int64(1), "left")], [1, "left"]),
        ([True], True),
        ([np.longdouble(3)], "3.0"),
        (None, None),
        ("scan", "scan"),
    ],
)
def test_a_uid_is_plain_data(uids, plain):
    found = plain_uid(uids)
    assert (found, type(found)) == (plain, type(plain))
    assert json.loads(json.dumps(found)) == plain


def test_a_state_with_failures_of_any_uids_is_plain_data():
    def fails_at_first(batch):
        if batch["x"][0] == 0:
            raise ValueError("first")
        return batch

    split = {"x": np.arange(3), "sample_uid": [Path("a"), b"b", np.int64(2)]}
    sequence = SequenceArray(split, SamplerSequential()).map(fails_at_first, on_error="skip", max_failures=2)
    iterator = iter(sequence)
    next(iterator)
    assert json.loads(json.dumps(sequence.state_dict())) == sequence.state_dict()
