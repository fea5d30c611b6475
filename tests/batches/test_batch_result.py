"""A collated batch is its owner's alone, is where it was asked for, and leaves what it was made of as it was."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from trw_pipeline.batches.collate import (
    collate_dicts,
    collate_list_of_dicts,
    default_collate_fn,
    default_collate_list_of_dicts,
)


@pytest.mark.parametrize("nb_dicts", [1, 2])
def test_writing_into_a_joined_batch_leaves_the_input_alone(nb_dicts):
    batch = {
        "a": np.zeros((1, 2)),
        "t": torch.zeros(1, 2),
        "la": [np.zeros(2)],
        "ls": ["a"],
        "m": {"a": np.zeros((1, 2))},
        "w": np.zeros(2),
        "wt": torch.zeros(2),
        "wl": ["a"],
        "wm": {"a": np.zeros(2)},
    }
    joined = default_collate_list_of_dicts([batch] * nb_dicts, shared_features=["w", "wt", "wl", "wm"])
    for tensor in (
        joined["a"],
        joined["t"],
        joined["la"],
        joined["m"]["a"],
        joined["w"],
        joined["wt"],
        joined["wm"]["a"],
    ):
        tensor += 1
    joined["ls"].append("b")
    joined["wl"].append("b")
    arrays = (batch["a"], batch["t"], batch["la"][0], batch["m"]["a"], batch["w"], batch["wt"], batch["wm"]["a"])
    assert not any(array.any() for array in arrays)
    assert batch["ls"] == batch["wl"] == ["a"]


def test_a_dict_is_not_changed():
    x, y, z = np.zeros(2), [1, 2], ["a", "b"]
    batch = {"x": x, "y": y, "z": z}
    collated = collate_dicts(batch, None)
    collated["new"] = 1
    collated["z"].append("c")
    assert list(batch) == ["x", "y", "z"]
    assert batch["x"] is x
    assert batch["y"] is y
    assert (y, z) == ([1, 2], ["a", "b"])


@pytest.mark.parametrize("batch", [OrderedDict(b=[1], a=[2]), [OrderedDict(b=1, a=2)]])
def test_the_result_is_a_plain_dict_in_the_order_of_the_first(batch):
    collated = default_collate_fn(batch, None)
    assert type(collated) is dict
    assert list(collated) == ["b", "a"]


def test_lists_of_dicts_in_a_list_are_spliced_in():
    batch = [[{"x": 0}, {"x": 1}], {"x": 2}, [], [{"x": 3}]]
    assert default_collate_fn(batch, None)["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "batch", [{"x": np.zeros(2), "y": [1, 2]}, [{"x": np.zeros(1), "y": 1}, {"x": torch.ones(1), "y": 2}]]
)
def test_tensors_are_made_on_the_device(batch):
    collated = default_collate_fn(batch, torch.device("meta"))
    assert collated["x"].device.type == collated["y"].device.type == "meta"


class Copies(TorchFunctionMode):
    """Stands in for page-locked memory: pinning gives a marked copy; every call of `Tensor.to` is recorded."""

    def __init__(self):
        super().__init__()
        self.pinned = []
        self.moved = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.pin_memory:
            self.pinned.append(args[0].clone())
            return self.pinned[-1]
        if func is torch.Tensor.to:
            self.moved.append((args[0], kwargs["non_blocking"]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("batch", [{"x": np.zeros(2), "y": [1, 2]}, [{"x": np.zeros(1), "y": 1}]])
def test_the_pinned_copy_is_what_travels(batch, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with Copies() as copies:
        default_collate_fn(batch, "meta", pin_memory=True, non_blocking=True)
    assert len(copies.pinned) == 2
    assert all(tensor is pinned for (tensor, _), pinned in zip(copies.moved, copies.pinned, strict=True))
    assert [non_blocking for _, non_blocking in copies.moved] == [True, True]


def test_without_cuda_nothing_is_pinned(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with Copies() as copies:
        assert collate_dicts({"x": [1, 2]}, None, pin_memory=True)["x"].tolist() == [1, 2]
    assert copies.pinned == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_batches_on_the_cpu_are_page_locked():
    assert collate_dicts({"x": np.zeros(2)}, None, pin_memory=True)["x"].is_pinned()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_samples_on_several_devices_are_joined():
    joined = collate_list_of_dicts([{"x": torch.zeros(1)}, {"x": torch.ones(1, device="cuda")}], "cuda")["x"]
    assert joined.is_cuda
    assert joined.tolist() == [0, 1]
