"""`SequencePrefetch`: the same items, made before they are asked for, and no more of them than was said."""

from __future__ import annotations

import contextvars
import itertools
import os
import signal
import sys
import threading
import traceback
import weakref

import cloudpickle
import numpy as np
import pytest
import torch

from trw_pipeline.errors import ClosedError, JobError, WouldBlock
from trw_pipeline.executors.waiting import wait_for_any
from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that workers need not import torch
LIMIT_S = 30  # nothing here takes long; a test that waits for so long has failed
THREADS = {"nb_workers": 2, "backend": "thread"}


def array(nb=6, **features):
    return SequenceArray({"x": np.arange(nb), **features}, SamplerSequential()).with_seed(5)


def numbers(items):
    return [int(x) for item in items for x in item["x"]]


def tenfold(batch):
    return {"x": 10 * batch["x"]}


def fails_at(number, error):
    def function(batch):
        if int(batch["x"][0]) == number:
            raise error
        return batch

    return function


class Noted(Sequence):
    """Endless numbers; tells which were asked for, and how many ahead of the loop."""

    def __init__(self):
        super().__init__()
        self.nb_asked_by_loop = 0
        self.most_ahead = 0
        self._made = [threading.Event() for _ in range(100)]

    def __iter__(self):
        for number in itertools.count():
            self.most_ahead = max(self.most_ahead, number + 1 - self.nb_asked_by_loop)
            self._made[number].set()
            yield {"x": np.array([number])}

    def note(self, batch):
        self._made[int(batch["x"][0])].set()
        return batch

    def wait_until_made(self, number):
        assert self._made[number].wait(LIMIT_S), f"{number} was not made ahead"


# Ahead


@pytest.mark.parametrize("nb_batches", [1, 2, 5])
def test_while_the_loop_holds_a_batch_the_next_ones_are_made_and_no_more(nb_batches):
    source = Noted()
    with source.prefetch(nb_batches) as sequence:
        iterator = iter(sequence)
        for number in range(12):
            source.nb_asked_by_loop += 1
            assert numbers([next(iterator)]) == [number]
            source.wait_until_made(number + nb_batches)
        assert source.most_ahead == nb_batches


def test_functions_without_workers_run_ahead_too():
    source = Noted()
    with array().map(source.note).batch(2).prefetch(2) as sequence:
        iterator = iter(sequence)
        assert numbers([next(iterator)]) == [0, 1]
        source.wait_until_made(5)


def test_nothing_is_made_before_the_first_batch_is_asked_for():
    source = Noted()
    with source.prefetch(3) as sequence:
        iterator = iter(sequence)
        assert source.most_ahead == 0
        next(iterator)


def test_filling_the_queues_of_the_cursor_begins():
    source = Noted()
    with source.prefetch(2) as sequence:
        sequence.fill_queue_all_sequences()
        source.wait_until_made(1)
        assert numbers([next(sequence)]) == [0]


def test_a_batch_that_was_taken_is_not_kept():
    with array(2).map(lambda batch: {"t": torch.zeros(1)}).prefetch(1) as sequence:
        iterator = iter(sequence)
        tensor = next(iterator)["t"]
        next(iterator)  # the thread has come back since
        kept = weakref.ref(tensor)
        del tensor
        assert kept() is None


# The same items


@pytest.mark.parametrize("options", [{}, THREADS, {"nb_workers": 1}], ids=["inline", "threads", "processes"])
@pytest.mark.parametrize("nb_batches", [1, 4])
def test_items_and_their_order_are_those_of_the_source(options, nb_batches):
    def noisy(batch, rng):
        return [{"x": batch["x"], "noise": rng.random(3)} for _ in range(int(batch["x"][0]) % 3)]

    def chain():
        source = SequenceArray({"x": np.arange(20)}, SamplerRandom()).with_seed(3)
        return source.map(noisy, **options)

    with chain() as plain, chain().prefetch(nb_batches) as ahead:
        for _ in range(2):
            expected = [(int(item["x"][0]), item["noise"].tolist()) for item in plain]
            assert [(int(item["x"][0]), item["noise"].tolist()) for item in ahead] == expected
    assert len(expected) > 10


@pytest.mark.slow
def test_it_may_stand_anywhere_and_twice():
    with (
        array(12).map(tenfold, nb_workers=2).prefetch(2).map(tenfold, nb_workers=2).batch(2).prefetch(1).collate()
    ) as sequence:
        assert [numbers(sequence) for _ in range(2)] == [[100 * i for i in range(12)]] * 2


def test_a_stage_with_workers_above_it_waits_for_it_and_for_them():
    """Its own bound is reached while more is ready below, which must not end its wait for workers again and again."""
    gate = threading.Event()
    waits = []

    def wait(batch):
        gate.wait(LIMIT_S)
        return batch

    source = Noted()
    with source.prefetch(2).map(wait, nb_workers=1, backend="thread", max_jobs_at_once=1).max_samples(3) as sequence:
        iterator = iter(sequence)
        with pytest.raises(WouldBlock):
            iterator.next_item(blocking=False)
        source.wait_until_made(1)
        while len(waits) < 50 and not gate.is_set():
            with pytest.raises(WouldBlock):
                iterator.next_item(blocking=False)
            if len(waits) == 20:
                gate.set()
            wait_for_any(iterator.executors(), 0.01, iterator.bells())
            waits.append(None)
        assert len(waits) <= 21
        assert numbers(iterator) == [0, 1, 2]


def test_a_reservoir_may_read_from_it():
    with array(4).map(tenfold, **THREADS).prefetch(2).async_reservoir(4, tenfold, 4, backend="thread") as reservoir:
        assert sorted(numbers(reservoir.collate())) == [0, 100, 200, 300]


def test_a_reservoir_may_be_read_ahead_epoch_after_epoch():
    with array(8).async_reservoir(4, tenfold, 4, backend="thread").collate().prefetch(2) as sequence:
        for _ in range(4):
            assert len(numbers(sequence)) == 4
        assert sequence.statistics()["1:tenfold"]["items"] > 4


def test_its_length_is_that_of_its_source():
    assert len(array(7).batch(2).prefetch(3)) == 4
    with pytest.raises(TypeError, match="the length of map is not known"):
        len(array().map(tenfold).prefetch(2))


def test_repr_says_how_far_ahead_and_where_to():
    assert [repr(chain).splitlines()[-1] for chain in (array().prefetch(2), array().prefetch(1, "meta"))] == [
        "  .prefetch(2)",
        "  .prefetch(1, device=meta)",
    ]


def test_a_function_finds_the_context_of_who_iterates():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("of the loop")
    with array(2).map(lambda batch: {**batch, "seen": variable.get()}).prefetch(1) as sequence:
        assert [batch["seen"] for batch in sequence] == ["of the loop"] * 2


# Not waiting


def test_an_item_that_is_not_ready_would_block():
    gate = threading.Event()
    with array().map(lambda batch: gate.wait(LIMIT_S) and batch).prefetch(2) as sequence:
        iterator = iter(sequence)
        with pytest.raises(WouldBlock):
            iterator.next_item(blocking=False)
        gate.set()
        assert numbers([iterator.next_item(blocking=True)]) == [0]


@pytest.mark.slow
def test_what_goes_on_may_be_asked_for_while_the_thread_works(tmp_path):
    def dies_once(batch):
        if int(batch["x"][0]) == 100 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    with array(400).map(dies_once, nb_workers=2, max_jobs_at_once=50).batch(4).prefetch(2) as sequence:
        found = []
        for batch in sequence:
            found += numbers([batch])
            for _ in range(20):
                assert "jobs in flight" in sequence.report()
                assert sequence.statistics()["1:dies_once"]["workers"] == 2
        assert found == list(range(400))
        assert sequence.statistics()["1:dies_once"]["jobs_lost"] > 0


# Errors


def test_an_error_comes_in_its_turn_with_its_traceback_and_the_rest_after_it():
    with array(4).batch(1, collate_fn=lambda items: fails_at(2, KeyError("two"))(items[0])).prefetch(3) as sequence:
        iterator = iter(sequence)
        assert numbers([next(iterator), next(iterator)]) == [0, 1]
        with pytest.raises(KeyError, match="two") as raised:
            next(iterator)
        assert "function" in [frame.name for frame in traceback.extract_tb(raised.tb)]
        assert numbers(iterator) == [3]


@pytest.mark.parametrize("options", [{}, THREADS], ids=["inline", "threads"])
def test_the_error_of_a_job_is_that_of_the_stage_below(options):
    uids = [f"s{i}" for i in range(4)]
    with array(4, sample_uid=uids).map(fails_at(1, ValueError("one")), **options).prefetch(2) as sequence:
        iterator = iter(sequence)
        next(iterator)
        with pytest.raises(JobError, match="ValueError: one") as raised:
            next(iterator)
        assert raised.value.uid == "s1"
        assert numbers(iterator) == [2, 3]


def test_skipped_samples_are_in_the_failures():
    with array(4).map(fails_at(1, ValueError), on_error="skip").prefetch(2) as sequence:
        assert numbers(sequence) == [0, 2, 3]
        assert [failure.key for failure in sequence.failures] == [(1,)]


def test_an_exit_of_a_function_is_the_callers():
    with array(4).map(fails_at(1, SystemExit(3))).prefetch(2) as sequence, pytest.raises(SystemExit):
        numbers(sequence)


@pytest.mark.parametrize("options", [{}, THREADS], ids=["inline", "threads"])
def test_a_stage_below_that_is_closed_is_an_error_and_not_the_end(options):
    low = array(6).map(tenfold, max_jobs_at_once=2, **options)
    with low.prefetch(1) as high:
        iterator = iter(high)
        next(iterator)
        low.close()
        with pytest.raises(ClosedError):
            numbers(iterator)


# What changes between epochs


@pytest.mark.parametrize("options", [{}, THREADS, {"nb_workers": 1}], ids=["inline", "threads", "processes"])
def test_what_was_made_ahead_by_a_function_that_changed_is_made_again(options):
    class Notes:
        epoch = 0

        def __call__(self, batch):
            return {"x": batch["x"], "epoch": np.array([self.epoch])}

    notes = Notes()
    with array(6).map(notes, **options).prefetch(2).max_samples(2) as sequence:
        for epoch in range(5):
            notes.epoch = epoch
            found = [(int(batch["x"][0]), int(batch["epoch"][0])) for batch in sequence]
            assert found == [((2 * epoch + i) % 6, epoch) for i in range(2)]


# Where to


def test_without_a_device_items_stay_as_they_are():
    given = [{"x": [1], "y": np.arange(2)}, ["a", 3]]

    class Given(Sequence):
        def __iter__(self):
            return iter(given)

    with Given().prefetch(1) as sequence:
        assert all(one is other for one, other in zip(sequence, given, strict=True))


def test_to_a_device_go_tensors_and_arrays_those_in_nested_dicts_too():
    name, lists = "numbers", [torch.zeros(1)]

    class Given(Sequence):
        def __iter__(self):
            return iter([{"a": np.arange(2), "nested": {"t": torch.zeros(2, 3)}, "name": name, "lists": lists}])

    (batch,) = Given().prefetch(1, device="meta")
    assert batch["a"].device.type == batch["nested"]["t"].device.type == "meta"
    assert (batch["a"].shape, batch["nested"]["t"].shape) == ((2,), (2, 3))
    assert batch["name"] is name
    assert batch["lists"] is lists


def test_on_the_cpu_arrays_become_tensors():
    assert [batch["x"].tolist() for batch in array(2).prefetch(2, torch.device("cpu"))] == [[0], [1]]


def test_only_dicts_go_to_a_device():
    with array().batch(2, collate_fn=None).prefetch(1, "cpu") as sequence, pytest.raises(TypeError, match="got list"):
        next(iter(sequence))


@pytest.mark.parametrize(("device", "error"), [("abacus", ValueError), (1.5, TypeError)])
def test_what_is_no_device_is_refused_at_once(device, error):
    with pytest.raises(error, match="device"):
        array().prefetch(2, device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_cuda_where_there_is_none_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="CUDA is not available"):
        iter(array().map(fails_at(0, ValueError)).prefetch(2, "cuda"))


def test_the_thread_is_on_the_cuda_device_of_who_iterates(monkeypatch):
    on = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: on.append((number, threading.current_thread().name)))
    assert numbers(array(2).prefetch(1)) == [0, 1]
    assert set(on) == {(3, "trw-prefetch")}


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@needs_cuda
@pytest.mark.parametrize("options", [{}, {"nb_workers": 2}], ids=["inline", "processes"])
def test_on_cuda_every_value_arrives_while_the_device_computes(options):
    def large(batch):
        values = np.arange(1_000_000, dtype=np.float32).reshape(1, 1000, 1000) + int(batch["x"][0])
        return {**batch, "large": values}

    busy = torch.rand(3000, 3000, device="cuda")
    with array(24).map(large, **options).batch(2).prefetch(3, "cuda") as sequence:
        for number, batch in enumerate(sequence):
            busy = (busy @ busy).clamp(0, 1)
            expected = torch.arange(1_000_000, dtype=torch.float32, device="cuda").reshape(1000, 1000)
            assert batch["large"].is_cuda
            assert bool((batch["large"][1] == expected + 2 * number + 1).all())
