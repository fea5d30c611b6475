"""`SequenceCollate`: every item becomes a dict of tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray


def array(nb=4):
    return SequenceArray({"x": np.arange(nb), "name": [f"s{i}" for i in range(nb)]}, SamplerSequential(batch_size=2))


class Lists(Sequence):
    """What a reservoir hands out: lists of results."""

    def __iter__(self):
        return iter([[{"x": [0]}, {"x": [1]}], [{"x": [2]}]])


def test_arrays_and_numbers_become_tensors():
    batches = list(array().collate())
    assert [batch["x"].tolist() for batch in batches] == [[0, 1], [2, 3]]
    assert all(isinstance(batch["x"], torch.Tensor) and batch["x"].dtype == torch.int64 for batch in batches)
    assert [batch["name"] for batch in batches] == [["s0", "s1"], ["s2", "s3"]]


def test_lists_of_dicts_are_joined():
    assert [batch["x"].tolist() for batch in Lists().collate()] == [[0, 1], [2]]


def test_tensors_go_to_the_device():
    assert next(iter(array().collate(device="meta")))["x"].device.type == "meta"


def test_a_device_that_torch_does_not_know_is_refused_before_work_starts():
    with pytest.raises(ValueError, match="device must be one that torch knows, got 'gpu'"):
        array().collate(device="gpu")


def test_a_collate_function_of_the_users_gets_the_item_and_the_device():
    seen = []

    def collate(item, device):
        seen.append((len(item), device))
        return len(item)

    assert list(Lists().collate(collate, "shelf 3")) == [2, 1]  # it may call devices as it likes
    assert seen == [(2, "shelf 3"), (1, "shelf 3")]


def test_shared_features_stay_as_they_are():
    split = {"x": np.arange(2), "classes": ["a", "b", "c"]}
    source = SequenceArray(split, SamplerSequential(), shared_features=("classes",))
    assert [batch["classes"] for batch in source.collate()] == [["a", "b", "c"]] * 2


def test_stop_iteration_from_collate_is_an_error():
    def stop(item, device):
        raise StopIteration

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(iter(array().collate(stop)))


def test_an_item_that_can_not_be_collated_does_not_end_the_epoch():
    class Mixed(Sequence):
        def __iter__(self):
            return iter([{"x": [0]}, 7, {"x": [2]}])

    iterator = iter(Mixed().collate())
    next(iterator)
    with pytest.raises(TypeError, match="int"):
        next(iterator)
    assert next(iterator)["x"].tolist() == [2]
