"""Staging: a device that copies when it likes gets every value, out of memory that is used again and again."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from trw_pipeline.batches.staging import ALIGN, SideStream, Stager


class LateEvent:
    """A moment in the work of a `LateStream`; whoever waits for it lets that work go on so far and no further."""

    def __init__(self, stream, position):
        self.stream = stream
        self.position = position

    def synchronize(self):
        self.stream.log.append("synchronize")
        self.stream.go_on_until(self.position)


class LateStream(TorchFunctionMode):
    """Stands in for a `SideStream`, without a device: copies are made as late as may be.

    Whoever writes into memory that is still to be copied from, or reads a value before it waits, gets a wrong one.
    """

    device = torch.device("cpu")

    def __init__(self):
        super().__init__()
        self.log = []
        self.page_locked_bytes = []
        self._work = []  # copies that are not made yet
        self._nb_done = 0

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords = keywords or {}
        if function is torch.Tensor.copy_ and keywords.get("non_blocking"):
            self._work.append(arguments)
            return arguments[0]
        return function(*arguments, **keywords)

    def go_on_until(self, position):
        while self._nb_done < position:
            target, source = self._work[self._nb_done]
            target.copy_(source)
            self._nb_done += 1

    def page_locked(self, nb_bytes):
        self.page_locked_bytes.append(nb_bytes)
        return torch.full((nb_bytes,), 255, dtype=torch.uint8)

    @contextlib.contextmanager
    def current(self):
        with self:
            yield

    def wait_for_others(self):
        self.log.append("wait for others")

    def event(self):
        self.log.append("event")
        return LateEvent(self, len(self._work))

    def hand_over(self, tensors, event):
        self.log.append(("hand over", len(tensors)))
        self.go_on_until(event.position)


def same(one, other):
    """Whether two batches are equal, value for value; lists and all else must be the same objects."""
    if isinstance(other, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in other)
    if isinstance(other, (torch.Tensor, np.ndarray)):
        other = torch.as_tensor(other)
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return one is other


DTYPES = [torch.float32, torch.uint8, torch.bool, torch.int64, torch.bfloat16, torch.complex64, torch.float64]
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
tensors = st.builds(
    lambda dtype, shape, seed: torch.randint(
        0, 2 if dtype is torch.bool else 100, shape, generator=torch.Generator().manual_seed(seed)
    ).to(dtype),
    st.sampled_from(DTYPES),
    shapes,
    st.integers(0, 1000),
)
with_gaps = tensors.map(lambda tensor: tensor.mT if tensor.dim() > 1 else tensor.expand(3, *tensor.shape))
values = st.one_of(tensors, with_gaps, st.text(), st.lists(st.integers()), st.none(), tensors.map(lambda t: [t]))
batches = st.dictionaries(
    st.text(max_size=2), values | st.dictionaries(st.text(max_size=2), values, max_size=2), max_size=4
)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.lists(batches, min_size=3, max_size=8), st.integers(0, 4))
def test_every_value_arrives_however_late_copies_are_made_and_batches_are_taken(given_batches, nb_ahead):
    stager = Stager(LateStream())
    given_batches = [{**batch, "number": torch.full((i % 3 + 1,), i)} for i, batch in enumerate(given_batches)]
    staged, got = [], []
    for batch in given_batches:
        staged.append(stager.stage(batch))
        if len(staged) > nb_ahead:
            got.append(stager.hand_over(staged.pop(0)))
    got += [stager.hand_over(one) for one in staged]
    assert all(map(same, got, given_batches))


def test_a_batch_may_be_written_to_once_it_is_staged():
    stager = Stager(LateStream())
    x, y = torch.zeros(3), np.zeros(3)
    staged = stager.stage({"x": x, "y": y})
    x += 1
    y += 1
    batch = stager.hand_over(staged)
    assert (batch["x"].tolist(), batch["y"].tolist()) == ([0, 0, 0], [0, 0, 0])


def test_a_slab_is_filled_again_only_when_the_device_has_what_was_in_it():
    side = LateStream()
    stager = Stager(side)
    for _ in range(5):
        stager.stage({"x": torch.zeros(3)})
    assert side.log == ["event", "event", *["synchronize", "event"] * 3]


def test_page_locked_memory_is_used_again_and_grows_to_the_largest_batch():
    side = LateStream()
    stager = Stager(side)
    for nb_floats in (64, 64, 65, 10, 64, 65, 65, 300, 10):
        stager.stage({"x": torch.zeros(nb_floats)})
    assert side.page_locked_bytes == [256, 256, 512, 512, 2048]


def test_tensors_of_a_batch_lie_side_by_side():
    side = LateStream()
    Stager(side).stage({"a": torch.zeros(1), "b": {"c": torch.zeros(ALIGN + 1, dtype=torch.uint8)}, "d": np.zeros(0)})
    assert side.page_locked_bytes == [4 * ALIGN]  # 1 + 2 + 0, rounded up to a power of two


def test_without_a_tensor_no_memory_is_taken():
    side = LateStream()
    stager = Stager(side)
    batch = {"names": ["a"], "n": 1, "d": {}}
    assert stager.hand_over(stager.stage(batch)) == batch
    assert side.page_locked_bytes == []


def test_strides_are_kept_as_torch_keeps_them():
    image = torch.arange(48.0).reshape(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    transposed, gaps = torch.arange(6).reshape(2, 3).T, torch.arange(12).reshape(3, 4)[:, ::2]
    stager = Stager(LateStream())
    batch = stager.hand_over(stager.stage({"image": image, "transposed": transposed, "gaps": gaps}))
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert batch["transposed"].stride() == transposed.stride()
    assert batch["gaps"].is_contiguous()
    assert same(batch, {"image": image, "transposed": transposed, "gaps": gaps})


def test_what_only_torch_knows_how_to_copy_is_left_to_it():
    parameter = torch.nn.Parameter(torch.ones(2))
    sparse = torch.eye(3).to_sparse()
    side = LateStream()
    stager = Stager(side)
    batch = stager.hand_over(stager.stage({"p": parameter, "s": sparse}))
    assert (type(batch["p"]), batch["s"].layout) == (torch.nn.Parameter, torch.sparse_coo)
    assert side.page_locked_bytes == []


def test_the_stream_waits_for_others_where_something_lies_on_a_device_already():
    side = LateStream()
    side.device = torch.device("meta")
    stager = Stager(side)
    stager.stage({"x": torch.zeros(2)})
    stager.stage({"x": torch.zeros(2, device="meta")})
    assert side.log == ["event", "wait for others", "event"]


def test_all_tensors_on_the_device_are_handed_over():
    side = LateStream()
    stager = Stager(side)
    stager.hand_over(stager.stage({"a": torch.zeros(1), "b": {"c": np.zeros(2), "d": "text"}, "l": [torch.zeros(1)]}))
    assert side.log[-1] == ("hand over", 2)


def test_after_an_error_the_slab_is_waited_for_too():
    class Full(LateStream):
        is_full = False

        def __torch_function__(self, function, types, arguments=(), keywords=None):
            if function is torch.empty_like and self.is_full and arguments[0].numel() == 7:
                raise RuntimeError("out of memory")
            return super().__torch_function__(function, types, arguments, keywords)

    side = Full()
    stager = Stager(side)
    kept = stager.stage({"x": torch.ones(3)})
    side.is_full = True
    with pytest.raises(RuntimeError, match="out of memory"):
        stager.stage({"x": torch.zeros(3), "y": torch.zeros(7)})
    side.is_full = False
    rest = [stager.stage({"x": torch.full((3,), float(i))}) for i in range(3)]
    assert [stager.hand_over(one)["x"].tolist() for one in (kept, *rest)] == [[1] * 3, [0] * 3, [1] * 3, [2] * 3]
    assert side.log[:4] == ["event", "event", "synchronize", "event"]


def test_only_mappings_are_staged():
    with pytest.raises(TypeError, match="got list"):
        Stager(LateStream()).stage([torch.zeros(1)])


# What is asked of CUDA


class Recorder:
    """Stands in for an object of torch.cuda: notes the calls of its methods, and what they were given."""

    def __init__(self, log, name):
        self._log, self._name = log, name

    def __getattr__(self, method):
        return lambda *given: self._log.append((self._name, method, *(getattr(one, "_name", one) for one in given)))


@pytest.fixture
def calls(monkeypatch):
    """The calls of torch.cuda, of its streams and of its events, in order."""
    log = []
    cuda = SimpleNamespace(
        Stream=lambda device: Recorder(log, "side"),
        Event=lambda blocking: log.append(("Event", blocking)) or Recorder(log, "event"),
        current_stream=lambda device: Recorder(log, f"current of {device}"),
        stream=lambda stream: log.append(("stream", stream._name)) or contextlib.nullcontext(),
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    return log


def test_at_the_hand_over_the_current_stream_waits_for_the_event_and_keeps_the_tensors(calls):
    side = SideStream(torch.device("cuda", 1))
    event = side.event()
    side.hand_over([Recorder(calls, "one"), Recorder(calls, "other")], event)
    assert calls == [
        ("Event", True),
        ("event", "record", "side"),
        ("current of cuda:1", "wait_event", "event"),
        ("one", "record_stream", "current of cuda:1"),
        ("other", "record_stream", "current of cuda:1"),
    ]


def test_the_side_stream_is_current_while_it_copies_and_can_wait_for_that_before_it(calls):
    side = SideStream(torch.device("cuda", 1))
    side.wait_for_others()
    with side.current():
        calls.append("copies")
    assert calls == [("side", "wait_stream", "current of cuda:1"), ("stream", "side"), "copies"]


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@needs_cuda
def test_on_cuda_every_value_arrives_in_time_and_memory_is_page_locked():
    side = SideStream(torch.device("cuda", 0))
    assert side.page_locked(8).is_pinned()
    stager = Stager(side)
    busy = torch.rand(2000, 2000, device="cuda")
    ahead = []
    for number in range(30):
        batch = {
            "x": torch.full((1000, 1000 + number), float(number)),
            "nested": {"t": torch.arange(6).reshape(2, 3).T},
        }
        ahead.append((number, stager.stage(batch)))
        busy = (busy @ busy).clamp(0, 1)
        if len(ahead) > 2:
            expected, staged = ahead.pop(0)
            got = stager.hand_over(staged)
            assert got["x"].shape == (1000, 1000 + expected)
            assert bool((got["x"] == expected).all())
            assert got["nested"]["t"].tolist() == [[0, 3], [1, 4], [2, 5]]


@needs_cuda
def test_on_cuda_what_is_pinned_is_copied_from_where_it_is():
    stager = Stager(SideStream(torch.device("cuda", 0)))
    pinned = torch.arange(5.0).pin_memory()
    on_device = torch.arange(3, device="cuda")
    got = stager.hand_over(stager.stage({"pinned": pinned, "device": on_device}))
    assert stager._slabs[-1]._memory is None
    assert got["pinned"].tolist() == [0, 1, 2, 3, 4]
    assert got["device"] is on_device
