"""`async for`: the items of the plain loop, an event loop that is free meanwhile, nothing left of what was given up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time

import numpy as np
import pytest

from trw_pipeline.errors import ClosedError, JobError, JobTimeoutError, WorkerLostError
from trw_pipeline.sequences import async_iteration
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

NB = 12
FOR_EVER_S = 40.0
THREADS = {"nb_workers": 2, "backend": "thread"}


class LoopWithoutReaders(asyncio.SelectorEventLoop):
    """An event loop that can not watch descriptors, as that of Windows."""

    def add_reader(self, fd, callback, *args):
        raise NotImplementedError


LOOPS = {"readers": asyncio.SelectorEventLoop, "threads": LoopWithoutReaders}


@pytest.fixture(params=LOOPS.values(), ids=LOOPS.keys())
def run(request):
    """Runs a coroutine in each kind of event loop; proves that no reader and no thread is left of it."""

    def run_in_loop(coroutine):
        async def limited():
            before = set(asyncio.get_running_loop()._selector.get_map())
            try:
                async with asyncio.timeout(FOR_EVER_S):
                    return await coroutine
            finally:
                assert set(asyncio.get_running_loop()._selector.get_map()) == before
                assert not [thread for thread in threading.enumerate() if thread.name.startswith("trw wait")]

        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(limited())

    return run_in_loop


@pytest.fixture
def gate():
    """An event that jobs in threads wait for; opened when the test ends."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def opened():
    """Closes the chains that are handed to it when the test ends."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


def array():
    return SequenceArray({"x": np.arange(NB)}, SamplerSequential())


def behind(gate):
    """A chain whose jobs wait for the gate, but that of the first item."""

    def pass_gate(batch):
        if batch["x"][0] > 0:
            gate.wait(FOR_EVER_S)
        return batch

    return array().map(pass_gate, **THREADS)


def number(batch):
    return int(batch["x"][0])


async def numbers(sequence):
    return [number(batch) async for batch in sequence]


async def until_waiting(epoch):
    """Lets other tasks run until one of them waits for an item of the epoch."""
    while not epoch._is_waiting:
        await asyncio.sleep(0)


# Items


@pytest.mark.slow
def test_items_come_from_worker_processes_epoch_after_epoch(opened, run):
    sequence = opened(array().map(lambda batch: {"x": 10 * batch["x"]}, nb_workers=2))

    async def two_epochs():
        return [await numbers(sequence) for _ in range(2)]

    assert run(two_epochs()) == [[10 * i for i in range(NB)]] * 2


def test_two_tasks_iterate_at_once(opened, run):
    sequence = opened(array().map(lambda batch: time.sleep(0.001) or batch, **THREADS))

    async def both():
        return await asyncio.gather(numbers(sequence), numbers(sequence))

    assert run(both()) == [list(range(NB))] * 2


def test_a_users_own_sequence_can_be_iterated_too(run):
    class Own(Sequence):
        def __iter__(self):
            return iter([{"x": [i]} for i in range(3)])

    assert run(numbers(Own())) == [0, 1, 2]


def test_an_epoch_that_is_over_stays_over(opened, run):
    sequence = opened(array())

    async def after_the_end():
        epoch = aiter(sequence)
        return [await anext(epoch, "over") for _ in range(NB + 2)][NB:]

    assert run(after_the_end()) == ["over", "over"]


# The event loop is free


def test_other_tasks_run_while_one_waits_for_workers(opened, run, gate):
    sequence = opened(behind(gate))

    async def other():
        gate.set()  # the wait can end only because this ran
        return "ran"

    async def both():
        epoch = aiter(sequence)
        await anext(epoch)
        task = asyncio.ensure_future(other())
        return await anext(epoch), await task

    second, ran = run(both())
    assert (number(second), ran) == (1, "ran")


def test_other_tasks_get_their_turn_from_a_loop_that_awaits_nothing_else(opened, run, monkeypatch):
    monkeypatch.setattr(async_iteration, "TURN_EVERY_S", 0.0)
    sequence = opened(array())
    turns = []

    async def other():
        while True:
            turns.append(len(turns))
            await asyncio.sleep(0)

    async def both():
        task = asyncio.ensure_future(other())
        found = await numbers(sequence)
        task.cancel()
        return found

    assert run(both()) == list(range(NB))
    assert len(turns) >= NB


# What ends a wait


def test_the_error_of_a_job_is_raised(opened, run):
    def fail(batch):
        raise ValueError("odd")

    with pytest.raises(JobError, match="odd"):
        run(numbers(opened(array().map(fail, **THREADS))))


@pytest.mark.slow
def test_the_death_of_a_worker_ends_the_wait(opened, run):
    def die(batch):
        import os

        os._exit(3)

    with pytest.raises(WorkerLostError):
        run(numbers(opened(array().map(die, nb_workers=1, max_retries=0))))


@pytest.mark.slow
def test_the_time_limit_of_a_job_ends_the_wait(opened, run):
    def hang(batch):
        time.sleep(FOR_EVER_S)

    sequence = opened(array().map(hang, nb_workers=1, job_timeout_s=0.1, max_retries=0))
    with pytest.raises(JobTimeoutError):
        run(numbers(sequence))


def test_a_long_wait_is_told(opened, run, gate, caplog):
    async def look():
        while "what runs where" not in caplog.text:
            await asyncio.sleep(0.01)
        gate.set()

    sequence = opened(array().map(lambda batch: gate.wait(FOR_EVER_S) and batch, stall_s=0.05, **THREADS))

    async def both():
        task = asyncio.ensure_future(look())
        found = await numbers(sequence)
        await task
        return found

    assert run(both()) == list(range(NB))


def test_closing_the_sequence_ends_the_wait_of_another_task(opened, run, gate):
    sequence = opened(behind(gate))

    async def both():
        epoch = aiter(sequence)
        await anext(epoch)
        waiting = asyncio.ensure_future(anext(epoch))
        await until_waiting(epoch)
        sequence.close()
        gate.set()  # no job has to be waited for
        with pytest.raises(ClosedError):
            await waiting

    run(both())
    for thread in threading.enumerate():
        if "pass_gate" in thread.name:
            thread.join(FOR_EVER_S)  # it is told to stop, and not waited for longer than a second


# Cancellation


def test_a_cancelled_wait_has_taken_no_item(opened, run, gate):
    sequence = opened(behind(gate))

    async def cancel_and_go_on():
        epoch = aiter(sequence)
        found = [number(await anext(epoch))]
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(epoch)
        gate.set()
        return found + [number(batch) async for batch in epoch]

    assert run(cancel_and_go_on()) == list(range(NB))


def test_a_cancelled_task_gives_up_its_epoch_and_the_next_is_whole(opened, run, gate):
    sequence = opened(behind(gate))

    async def cancel_and_begin_again():
        task = asyncio.ensure_future(numbers(sequence))
        while not sequence.statistics()["1:pass_gate"].get("jobs_done"):
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        del task
        gc.collect()
        assert sequence.statistics()["1:pass_gate"]["jobs_in_flight"] == 0
        gate.set()
        return await numbers(sequence)

    assert run(cancel_and_begin_again()) == list(range(NB))


def test_after_a_break_nothing_is_in_flight_and_the_position_can_be_saved(opened, run):
    sequence, other = (opened(array().map(lambda batch: batch, name="same", **THREADS)) for _ in range(2))

    async def broken():
        async for batch in sequence:
            if number(batch) == 4:
                break

    run(broken())
    assert sequence.statistics()["1:same"]["jobs_in_flight"] == 0
    other.load_state_dict(sequence.state_dict())
    assert run(numbers(other)) == list(range(5, NB))


def test_aclose_gives_up_the_epoch(opened, run):
    sequence = opened(array().map(lambda batch: batch, **THREADS))

    async def close_it():
        async with contextlib.aclosing(aiter(sequence)) as epoch:
            await anext(epoch)
        await epoch.aclose()
        with pytest.raises(ClosedError):
            await anext(epoch)

    run(close_it())


def test_two_tasks_may_not_wait_for_items_of_one_epoch(opened, run, gate):
    sequence = opened(behind(gate))

    async def both():
        epoch = aiter(sequence)
        await anext(epoch)
        waiting = asyncio.ensure_future(anext(epoch))
        await until_waiting(epoch)
        with pytest.raises(RuntimeError, match="another task"):
            await anext(epoch)
        gate.set()
        return number(await waiting)

    assert run(both()) == 1
