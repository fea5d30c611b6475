"""Long chains of parallel stages: they make progress, stay within bounds, and leave nothing behind."""

from __future__ import annotations

import gc
import itertools
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest

from trw_pipeline.executors.capacity import MOST_JOBS_PER_WORKER
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

ROOT = Path(__file__).resolve().parents[2]
THREADS = {"backend": "thread", "max_jobs_at_once": 1}


def array(nb):
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential())


def numbers(items):
    return [int(x) for item in items for x in item["x"]]


def a_while(seed):
    """A function that takes up to 2 ms, as a closure with its own generator: jobs of a run differ from run to run."""
    generator = random.Random(seed)

    def function(batch):
        time.sleep(generator.uniform(0, 0.002))
        return {"x": batch["x"]}

    return function


# Progress


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_parallel_stages_with_all_capacities_at_one_end_and_account_for_every_sample(seed):
    nb = 40
    chain = array(nb).map(a_while(seed), nb_workers=2, **THREADS)
    chain = chain.async_reservoir(nb, a_while(seed + 1), nb, 2, max_jobs_at_once=1, backend="thread").collate()
    chain = chain.map(a_while(seed + 2), nb_workers=1, **THREADS).rebatch(7).collate()
    with chain as sequence:
        first = [batch["x"].tolist() for batch in sequence]
        second = [batch["x"].tolist() for batch in sequence]
    assert [len(batch) for batch in first] == [len(batch) for batch in second] == [7, 7, 7, 7, 7, 5]
    assert sorted(itertools.chain(*first)) == list(range(nb))
    assert len(Counter(itertools.chain(*second))) >= nb - 1


@pytest.mark.slow
def test_parallel_stages_of_processes_with_all_capacities_at_one_end():
    nb = 1000
    options = {"max_jobs_at_once": 1}

    def load(batch):
        return {"x": np.asarray(batch["x"])}

    chain = array(nb).map(load, nb_workers=2, **options)
    chain = chain.async_reservoir(nb, load, nb, 2, collate_fn=None, **options)
    chain = chain.map(lambda drawn: drawn, nb_workers=1, **options).rebatch(64).collate()
    with chain as sequence:
        assert sorted(numbers(sequence)) == list(range(nb))


@pytest.mark.slow
def test_interrupted_and_restarted_chains_go_on():
    nb = 30
    chain = array(nb).map(a_while(0), nb_workers=2, **THREADS).batch(2)
    with chain.map(a_while(1), nb_workers=2, in_order=False, **THREADS).rebatch(5) as sequence:
        for position in range(7):
            for _ in zip(range(position), sequence, strict=False):
                pass
            assert sorted(numbers(sequence)) == list(range(nb))


# Bounds


class Counted(Sequence):
    """An endless source that counts what was taken from it."""

    def __init__(self):
        super().__init__()
        self.taken = 0

    def __iter__(self):
        for i in itertools.count():
            self.taken += 1
            yield {"x": np.array([i])}


CHAINS = {
    # the sum of the capacities: max_jobs_at_once of every stage with workers (without workers one job is taken at a
    # time), the items of a group, and the one that is being handed on
    "map": (lambda s: s.map(ten_times_larger, nb_workers=2, backend="thread", max_jobs_at_once=3), 3),
    "map, any order": (
        lambda s: s.map(ten_times_larger, nb_workers=2, backend="thread", max_jobs_at_once=3, in_order=False),
        3,
    ),
    "map, inline": (lambda s: s.map(ten_times_larger), 1),
    "map over map": (
        lambda s: s.map(ten_times_larger, nb_workers=2, backend="thread", max_jobs_at_once=3).map(
            ten_times_larger, nb_workers=2, backend="thread", max_jobs_at_once=5
        ),
        8,
    ),
    "processes": (lambda s: s.map(lambda b: {"x": np.repeat(b["x"], 10)}, nb_workers=2, max_jobs_at_once=3), 3),
}


def ten_times_larger(batch):
    return {"x": np.repeat(batch["x"], 10)}


@pytest.mark.parametrize(("make", "bound"), CHAINS.values(), ids=CHAINS.keys())
def test_reading_ahead_is_bounded_by_the_sum_of_the_capacities(make, bound):
    """MEM-2: of an endless source, with results larger than what they were made of."""
    source = Counted()
    with make(source) as sequence:
        for consumed in range(1, 41):
            next(sequence)
            if consumed % 10 == 0:  # a consumer that is slow now and then, so that the stages run full
                time.sleep(0.01)
                sequence.fill_queue_all_sequences()
            assert source.taken - consumed <= bound


def test_reading_ahead_is_bounded_where_the_capacity_is_found():
    """A consumer that always waits lets it grow as far as it goes."""
    source = Counted()
    with source.map(ten_times_larger, nb_workers=2, backend="thread") as sequence:
        for consumed in range(1, 3001):
            next(sequence)
            assert source.taken - consumed <= 2 * MOST_JOBS_PER_WORKER


def test_reading_ahead_for_groups_is_bounded_too():
    source = Counted()
    chain = source.map(lambda b: b, nb_workers=2, backend="thread", max_jobs_at_once=3).batch(4)
    with chain.map(lambda b: b, nb_workers=2, backend="thread", max_jobs_at_once=2) as sequence:
        for consumed, _ in enumerate(itertools.islice(sequence, 20), 1):
            time.sleep(0.001)
            assert source.taken - 4 * consumed <= 3 + 4 * (2 + 1)


def test_a_reservoir_takes_no_more_than_its_jobs():
    source = Counted()
    with source.async_reservoir(5, lambda b: b, 5, 2, backend="thread", max_jobs_at_once=3) as sequence:
        for _ in range(10):
            list(sequence)
            served = sequence.statistics()["1:<lambda>"]["jobs_done"]
            assert source.taken - served <= 3


# Nothing left behind


class Resources(NamedTuple):
    """The numbers of threads, of child processes and of open descriptors."""

    threads: int
    children: int
    descriptors: int

    @classmethod
    def now(cls):
        process = psutil.Process()
        return cls(threading.active_count(), len(process.children(recursive=True)), process.num_fds())


# A worker that has ended is a child until the fork server has looked, and ZeroMQ frees sockets from a thread of its
# own: both take a moment, on a busy machine a long one.


def resources_settled():
    """Returns what there is once that is the same for a fifth of a second."""
    looks = [Resources.now()]
    while len(looks) < 20:
        time.sleep(0.01)
        now = Resources.now()
        looks = [*looks, now] if now == looks[-1] else [now]
    return looks[-1]


def more_than(before):
    """Waits, for a limited time, until there is nothing that is more than before, and returns what is."""
    deadline = time.monotonic() + 10
    while True:
        now = Resources.now()
        more = {name: getattr(now, name) for name in now._fields if getattr(now, name) > getattr(before, name)}
        if not more or time.monotonic() > deadline:
            return more
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"nb_workers": 2, "backend": "thread"}, {"nb_workers": 2}], ids=["thread", "process"]
)
def test_epochs_that_are_dropped_leave_nothing(options):
    """MEM-3."""
    with array(50).map(lambda b: {"x": np.zeros((1, 5000))}, **options).batch(3) as sequence:
        for _ in range(20):
            next(iter(sequence))
        gc.collect()
        before, memory = resources_settled(), psutil.Process().memory_info().rss
        for _ in range(200):
            next(iter(sequence))
        gc.collect()
        # A worker that has nothing to do at first may need the thread that watches its replies, and the descriptor of
        # its share of shared memory, only now. Of epochs that leave something there were two hundred.
        assert more_than(before._replace(threads=before.threads + 2, descriptors=before.descriptors + 2)) == {}
        assert psutil.Process().memory_info().rss - memory < 30e6


@pytest.mark.slow
@pytest.mark.parametrize("preprocess", [None, lambda item, source: item])
def test_sequences_that_are_dropped_without_close_leave_nothing(preprocess):
    def make_and_drop():
        chain = array(50).map(lambda b: b, nb_workers=1, preprocess_fn=preprocess).max_samples(30)
        chain = chain.async_reservoir(4, lambda b: b, backend="thread").collate()
        next(iter(chain))
        del chain
        if preprocess is not None:  # it is called with the sequence, which makes a cycle
            gc.collect()

    make_and_drop()  # starts what lives as long as the program
    first = resources_settled()
    for _ in range(5):
        make_and_drop()
    assert more_than(first) == {}
    assert first.threads == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "status", "holder"),
    [("", 0, "global"), ("raise KeyError('here')", 1, "cycle"), ("sys.exit(3)", 3, "global")],
)
def test_a_program_that_closes_nothing_ends(tmp_path, ending, status, holder):
    script = tmp_path / "program.py"
    source = f"""
        import sys
        import numpy as np
        from trw_pipeline.sequences.sequence import SequenceArray

        def load(batch):
            return batch

        def make():
            source = SequenceArray({{"x": np.arange(50)}})
            return source.map(load, nb_workers=2).async_reservoir(4, load, nb_workers=1).collate().map(load, 1)

        if __name__ == "__main__":
            sequence = make()
            next(iter(sequence))
            if {holder == "cycle"}:
                sequence.itself = sequence
                del sequence
            {ending}
    """
    script.write_text(textwrap.dedent(source))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.returncode == status, done.stderr
    assert ("KeyError: 'here'" in done.stderr) == (status == 1)
    assert done.stdout == ""
