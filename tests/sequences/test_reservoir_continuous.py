"""A reservoir with `replacement="continuous"`: results enter while the consumer is away, and the thread ends."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time

import numpy as np
import pytest

from trw_pipeline.errors import ClosedError, ExecutorError, JobError, WouldBlock
from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

THREADS = {"nb_workers": 2, "backend": "thread", "replacement": "continuous"}
PROCESSES = {"nb_workers": 2, "replacement": "continuous"}
LIMIT_S = 30.0


def array(nb=10):
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential()).with_seed(3)


def numbers(items):
    return [int(x) for drawn in items for result in drawn for x in result["x"]]


def same(batch):
    return batch


def run_epochs(sequence):
    """Runs epochs until one raises: four results that were sooner fill the first one, and it is over."""
    while True:
        list(sequence)


def wait_until(is_so):
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.002)


def figures(sequence):
    return next(figures for figures in sequence.statistics().values() if "size" in figures)


def reservoir_threads():
    return [thread for thread in threading.enumerate() if thread.name == "reservoir"]


# What enters


@pytest.mark.parametrize("workers", [THREADS, pytest.param(PROCESSES, marks=pytest.mark.slow)])
def test_results_enter_while_the_consumer_is_away(workers):
    with array(100).async_reservoir(4, lambda b: b, 4, **workers) as sequence:
        iterator = iter(sequence)
        first = numbers([next(iterator)])
        wait_until(lambda: figures(sequence)["fresh"] >= 5)
        assert first[0] < 100
        assert len(numbers(iterator)) == 3


def test_an_epoch_is_as_long_as_there_were_results_at_its_start():
    with array(100).async_reservoir(8, same, 3, **THREADS) as sequence:
        wait_until(lambda: len(numbers(sequence)) == 8)
        for _ in range(3):
            assert len(numbers(sequence)) == 8


def test_only_what_was_served_leaves_so_no_result_is_lost():
    """The workers are faster than the consumer, who finds all replaced each time: each result is drawn all the same."""
    with array(500).async_reservoir(5, same, 5, in_order=True, **THREADS) as sequence:
        seen = []
        for epoch in range(1, 30):
            seen += numbers(sequence)
            wait_until(lambda epoch=epoch: figures(sequence)["fresh"] == 5 * (epoch + 1))
    assert seen == list(range(5 * 29))


def test_workers_stop_when_everything_that_is_kept_is_still_to_be_served():
    calls = []

    def count(batch):
        calls.append(int(batch["x"][0]))
        return batch

    with array(1000).async_reservoir(4, count, 4, max_jobs_at_once=3, **THREADS) as sequence:
        iterator = iter(sequence)
        next(iterator)
        nb = 4 + 1 + 1 + 3
        wait_until(lambda: len(calls) >= nb and figures(sequence)["waiting"] == 1 + 3)
        for _ in range(20):
            threading.Event().wait(0.002)
        assert len(calls) == nb
        next(iterator)  # makes room
        wait_until(lambda: len(calls) > nb)


def test_a_batch_that_was_handed_out_never_changes():
    """Its slots are filled again and again meanwhile; what is written into it changes nothing either."""
    with array(1000).async_reservoir(4, lambda b: b, 4, **PROCESSES) as sequence:
        held = []
        for _ in range(20):
            for drawn in sequence:
                held.append((drawn, numbers([drawn])))
        assert all(numbers([drawn]) == before for drawn, before in held)
        for drawn, _ in held:
            drawn[0]["x"] += 5000
        assert max(numbers(sequence)) < 1000


@pytest.mark.slow
def test_the_echo_factor_is_what_the_times_of_jobs_and_steps_say():
    """One worker that is never without a job, and a consumer who takes a quarter of that for a draw."""
    nb, sampler = 400, SamplerRandom(replacement=True, nb_samples_to_generate=400)
    options = {**THREADS, "nb_workers": 1}

    def slow(batch):
        time.sleep(0.008)
        return batch

    with array(100_000).async_reservoir(40, slow, 40, reservoir_sampler=sampler, **options) as sequence:
        next(iter(sequence))
        before, start = figures(sequence), time.monotonic()
        for _ in sequence:
            time.sleep(0.002)
        after, took_s = figures(sequence), time.monotonic() - start
    served, fresh, busy_s, jobs = (after[n] - before[n] for n in ("served", "fresh", "busy_s", "jobs_done"))
    assert served == nb
    expected = (nb / took_s) / (jobs / busy_s)  # draws a second by what a worker does a second
    assert served / fresh == pytest.approx(expected, rel=0.05)
    assert 2 < expected < 8
    assert after["echo_factor"] == after["served"] / after["fresh"]


def test_failures_are_raised_and_iteration_goes_on():
    def fails_at_1(batch):
        if batch["x"][0] == 1:
            raise ValueError("bad header")
        return batch

    with array(50).async_reservoir(4, fails_at_1, 4, **THREADS) as sequence:
        with pytest.raises(JobError, match="bad header") as caught:
            run_epochs(sequence)
        assert caught.value.uid == 1
        assert 1 not in numbers(sequence)


def test_failures_that_are_skipped_are_recorded():
    def fails_at_1(batch):
        if batch["x"][0] == 1:
            raise ValueError("bad header")
        return batch

    with array(50).async_reservoir(4, fails_at_1, 4, on_error="skip", **THREADS) as sequence:
        next(iter(sequence))
        wait_until(lambda: [failure.uid for failure in sequence.failures] == [1])


def test_if_every_job_fails_the_epoch_ends_with_an_error():
    with (
        array(4).async_reservoir(3, lambda b: 1 / 0, 2, on_error="skip", **THREADS) as sequence,
        pytest.raises(ExecutorError, match="a whole pass over its source, failed or gave nothing"),
    ):
        next(iter(sequence))


def test_an_empty_source_is_an_error_each_time():
    with array(0).async_reservoir(2, same, **THREADS) as sequence:
        iterator = iter(sequence)
        for _ in range(2):
            with pytest.raises(ValueError, match="empty"):
                next(iterator)


def test_an_error_of_the_source_is_raised_with_its_traceback():
    class Broken(Sequence):
        def __iter__(self):
            yield {"x": np.array([0])}
            raise OSError("disk is gone")

    with (
        Broken().async_reservoir(3, same, 3, **THREADS) as sequence,
        pytest.raises(OSError, match="disk is gone") as caught,
    ):
        next(iter(sequence))
    assert any(entry.name == "__iter__" for entry in caught.traceback)


def test_results_that_never_fit_are_an_error():
    with (
        array().async_reservoir(
            5, lambda b: {"x": np.zeros(1000)}, 5, max_reservoir_bytes=20_000, **THREADS
        ) as sequence,
        pytest.raises(ValueError, match="max_reservoir_bytes must have room for min_reservoir_samples=5"),
    ):
        next(iter(sequence))


def test_without_blocking_it_says_that_nothing_is_ready():
    gate = threading.Event()

    def later(batch):
        gate.wait(LIMIT_S)
        return batch

    with array().async_reservoir(2, later, 2, **THREADS) as sequence:
        iterator = iter(sequence)
        with pytest.raises(WouldBlock):
            iterator.next_item(blocking=False)
        gate.set()
        assert next(iterator)


def test_a_stage_above_waits_for_it_as_for_any_other():
    with array().async_reservoir(6, same, 6, **THREADS).collate().map(same, nb_workers=1, backend="thread") as sequence:
        assert sum(len(batch["x"]) for batch in sequence) == 6


def test_stages_below_belong_to_the_thread():
    chain = array(40).map(same, nb_workers=2, backend="thread").batch(2)
    with chain.async_reservoir(5, same, 5, **THREADS).collate() as sequence:
        for _ in range(5):
            assert sum(len(batch["x"]) for batch in sequence) == 10


def test_it_feeds_a_prefetch_and_is_fed_by_one():
    chain = array(40).collate().prefetch(2).async_reservoir(6, same, 6, **THREADS)
    with chain.collate().prefetch(2) as sequence:
        for _ in range(3):
            assert sum(len(batch["x"]) for batch in sequence) == 6


# The end of the thread


def test_the_thread_starts_with_the_first_item():
    with array().async_reservoir(4, same, **THREADS) as sequence:
        iterator = iter(sequence)
        assert not reservoir_threads()
        next(iterator)
        assert len(reservoir_threads()) == 1
        list(sequence)
        assert len(reservoir_threads()) == 1
    assert not reservoir_threads()


def test_close_ends_it_while_a_worker_is_slow():
    gate = threading.Event()

    def later(batch):
        if batch["x"][0] > 3:
            gate.wait(LIMIT_S)
        return batch

    sequence = array().async_reservoir(4, later, 4, **THREADS)
    next(iter(sequence))
    wait_until(lambda: figures(sequence)["jobs_running"] == 2)
    threading.Timer(0.05, gate.set).start()
    sequence.close()
    assert not reservoir_threads()


def test_close_from_elsewhere_ends_a_wait_for_the_first_results():
    gate = threading.Event()

    def later(batch):
        gate.wait(LIMIT_S)
        return batch

    sequence = array().async_reservoir(4, later, 4, **THREADS)
    iterator = iter(sequence)
    closing = threading.Timer(0.05, sequence.close)
    closing.start()
    with pytest.raises(ClosedError):
        next(iterator)
    gate.set()
    closing.join()
    assert not reservoir_threads()


@pytest.mark.parametrize("nb_taken", [0, 1, 3])
def test_dropping_the_sequence_ends_it(nb_taken):
    sequence = array().async_reservoir(4, same, 4, **THREADS)
    iterator = iter(sequence)
    for _ in range(nb_taken):
        next(iterator)
    del sequence, iterator
    assert not reservoir_threads()


def test_an_iterator_alone_keeps_it_alive():
    iterator = iter(array(100).async_reservoir(4, same, 4, **THREADS).collate())
    assert sum(len(batch["x"]) for batch in iterator) == 4
    del iterator
    gc.collect()
    assert not reservoir_threads()


def test_an_abandoned_epoch_leaves_it_to_the_next():
    with array(100).async_reservoir(4, same, 4, **THREADS) as sequence:
        for _ in range(5):
            next(iter(sequence))
        assert len(reservoir_threads()) == 1
        assert len(numbers(sequence)) == 4


@pytest.mark.slow
def test_many_that_are_dropped_leave_nothing():
    for _ in range(50):
        next(iter(array().async_reservoir(3, same, 3, **THREADS)))
    assert not reservoir_threads()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_copy_of_the_program_says_that_it_is_not_its_own():
    with array().async_reservoir(4, same, 4, **THREADS) as sequence:
        iterator = iter(sequence)
        next(iterator)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                next(iterator)
            except ExecutorError:
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert next(iterator)


PROGRAM = """
    import numpy as np
    from trw_pipeline.sequences.sequence import SequenceArray
    import time

    def load(batch):
        time.sleep(0.01)
        return batch

    if __name__ == "__main__":
        sequence = SequenceArray({{"x": np.arange(100)}}).async_reservoir(
            8, load, {minimum}, nb_workers=2, replacement="continuous", backend={backend!r}
        )
        iterator = iter(sequence)
        print("ready", flush=True)
        {then}
"""


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_program_that_closes_nothing_ends(program, backend):
    result = program(PROGRAM.format(minimum=8, backend=backend, then="print(len(list(iterator)))")).finish()
    assert (result.returncode, result.stdout, result.stderr) == (0, "ready\n8\n", "")


def test_ctrl_c_is_at_once_and_leaves_nothing(programs_ended_by):
    """While the consumer waits for the first results, and while it is away."""
    waits = PROGRAM.format(minimum=8, backend="process", then="next(iterator)").replace("0.01", "60")
    away = PROGRAM.format(minimum=2, backend="process", then="next(iterator); time.sleep(60)")
    for source in (waits, away):
        for ended in programs_ended_by(source, signal.SIGINT, [("ready", 0.05), ("ready", 1.0)]):
            assert ended.errors.count("Traceback") == 1
            assert ended.errors.rstrip().endswith("KeyboardInterrupt")
            assert ended.took_s < LIMIT_S / 2


def test_the_thread_leaves_the_global_generators_alone():
    """It opens a pass over the source, which is shuffled, after every other result."""
    source = SequenceArray({"x": np.arange(2)}, SamplerRandom()).with_seed(3)
    with source.async_reservoir(4, same, 4, **THREADS) as sequence:
        np.random.seed(5)
        found = []
        for _ in range(100):
            next(iter(sequence))
            found += [np.random.random() for _ in range(10)]
    assert found == np.random.RandomState(5).random_sample(1000).tolist()
