"""Moving batches between devices, and back to NumPy. The `meta` device stands in where no accelerator is at hand."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from trw_pipeline.batches.device import get_device, to_value, transfer_batch_to_device


class Moves(TorchFunctionMode):
    """Records every call of `Tensor.to` inside the block."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to:
            self.calls.append((args[1].type, kwargs["non_blocking"]))
        return func(*args, **(kwargs or {}))


def test_tensors_and_arrays_arrive_on_the_device():
    moved = transfer_batch_to_device({"t": torch.zeros(2), "a": np.zeros((3, 1), np.uint8), "d": np.array(1)}, "meta")
    assert {name: (value.device.type, tuple(value.shape), value.dtype) for name, value in moved.items()} == {
        "t": ("meta", (2,), torch.float32),
        "a": ("meta", (3, 1), torch.uint8),
        "d": ("meta", (), torch.int64),
    }


def test_tensors_in_nested_mappings_arrive_on_the_device():
    moved = transfer_batch_to_device({"a": {"b": {"c": torch.zeros(2)}}}, torch.device("meta"))
    assert moved["a"]["b"]["c"].device.type == "meta"


def test_everything_else_is_the_same_object():
    batch = {"l": [torch.zeros(1)], "s": "text", "u": (torch.zeros(1),), "n": None, "x": np.array(["a", "b"]), "f": len}
    moved = transfer_batch_to_device(batch, "meta")
    assert all(moved[name] is value for name, value in batch.items())


def test_the_batch_is_not_changed():
    batch = {"a": np.zeros(2), "m": {"t": torch.zeros(2)}}
    nested = batch["m"]
    moved = transfer_batch_to_device(batch, "meta")
    assert moved is not batch
    assert isinstance(batch["a"], np.ndarray)
    assert batch["m"] is nested
    assert nested["t"].device.type == "cpu"


def test_no_device_is_the_cpu():
    assert transfer_batch_to_device({"a": np.arange(2)}, None)["a"].tolist() == [0, 1]


def test_non_blocking_reaches_the_copy():
    with Moves() as moves:
        transfer_batch_to_device({"t": torch.zeros(2)}, "meta", non_blocking=True)
        transfer_batch_to_device({"t": torch.zeros(2)}, "meta")
    assert moves.calls == [("meta", True), ("meta", False)]


def test_a_copy_to_the_cpu_always_waits():
    with Moves() as moves, pytest.raises(NotImplementedError, match="meta tensor"):  # it has nothing to copy
        transfer_batch_to_device({"t": torch.zeros(2, device="meta")}, "cpu", non_blocking=True)
    assert moves.calls == [("cpu", False)]


def test_what_is_there_already_is_not_moved():
    tensor = torch.zeros(2)
    with Moves() as moves:
        assert transfer_batch_to_device({"t": tensor}, "cpu")["t"] is tensor
    assert moves.calls == []


def test_only_a_mapping_can_be_transferred():
    with pytest.raises(TypeError, match="must be a mapping from feature name to value, got list"):
        transfer_batch_to_device([torch.zeros(1)], "cpu")


def test_a_module_lives_where_its_first_parameter_is():
    assert get_device(torch.nn.Linear(1, 1, device="meta")) == torch.device("meta")


def test_a_module_without_parameters_lives_where_its_buffer_is():
    module = torch.nn.Module()
    module.register_buffer("mean", torch.zeros(1, device="meta"))
    assert get_device(module, {"x": torch.zeros(1)}) == torch.device("meta")


def test_a_module_without_tensors_lives_where_the_batch_is():
    batch = {"n": 1, "m": {"x": torch.zeros(1, device="meta")}, "y": torch.zeros(1)}
    assert get_device(torch.nn.ReLU(), batch) == torch.device("meta")


def test_nothing_tells_the_device_of_a_module_without_tensors():
    assert get_device(torch.nn.ReLU()) is None
    assert get_device(torch.nn.ReLU(), {"x": [1]}) is None


def test_tensors_become_arrays_of_their_dtype():
    value = to_value(torch.tensor([[1, 2]], dtype=torch.int16))
    assert isinstance(value, np.ndarray)
    assert (value.dtype, value.tolist()) == (np.int16, [[1, 2]])


def test_a_tensor_with_a_gradient_becomes_an_array():
    assert to_value(torch.ones(2, requires_grad=True) * 3).tolist() == [3, 3]


def test_bfloat16_becomes_float32():
    value = to_value(torch.tensor([1.5, -2], dtype=torch.bfloat16))
    assert (value.dtype, value.tolist()) == (np.float32, [1.5, -2])


def test_a_conjugate_view_becomes_its_values():
    assert to_value(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]


def test_containers_are_searched_for_tensors():
    Pair = namedtuple("Pair", "left right")
    value = to_value({"a": [torch.zeros(1), "s"], "b": Pair(torch.ones(1), (torch.ones(2), None))})
    assert isinstance(value["a"][0], np.ndarray)
    assert value["a"][1] == "s"
    assert isinstance(value["b"], Pair)
    assert value["b"].left.tolist() == [1]
    assert value["b"].right[0].tolist() == [1, 1]
    assert value["b"].right[1] is None


def test_what_is_no_tensor_is_returned_as_it_is():
    array = np.zeros(2)
    assert to_value(array) is array
    assert to_value("text") == "text"
