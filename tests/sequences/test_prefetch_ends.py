"""How the thread of `SequencePrefetch` ends: within moments, whatever it waits for, however the epoch is left."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import weakref

import cloudpickle
import numpy as np
import psutil
import pytest

from trw_pipeline.errors import ClosedError, ExecutorError
from trw_pipeline.sequences.iterator import Epoch
from trw_pipeline.sequences.prefetch import PrefetchIterator
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

cloudpickle.register_pickle_by_value(sys.modules[__name__])
LIMIT_S = 30  # nothing here takes long; a test that waits for so long has failed


def array(nb=6):
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential()).with_seed(5)


def same(batch):
    return batch


def hangs_from_one_on(batch):
    if batch["x"][0] > 0:
        signal.pause()
    return batch


def numbers(items):
    return [int(x) for item in items for x in item["x"]]


def opened(sequence) -> PrefetchIterator:
    """An epoch that nobody else refers to: a sequence keeps the newest of those that it opens by `iter`."""
    return sequence.open_epoch(Epoch(5, 0))


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "trw-prefetch"]


def wait_until_none_is_left():
    for thread in threads():
        thread.join(LIMIT_S)
    assert threads() == []


@pytest.fixture
def no_collector():
    """What is dropped has to go by itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# The end of an epoch


def test_with_the_epoch_its_thread_ends():
    sequence = array().prefetch(2)
    assert numbers(sequence) == list(range(6))
    wait_until_none_is_left()


def test_where_the_loop_has_stopped_and_all_is_made_a_close_ends_it():
    with array().prefetch(2) as sequence:
        next(iter(sequence))
        assert len(threads()) == 1
    assert threads() == []


def test_a_close_ends_it_while_it_waits_for_a_worker_that_hangs():
    with array().map(hangs_from_one_on, nb_workers=1).prefetch(2) as sequence:
        next(iter(sequence))
    assert threads() == []


def test_a_closed_epoch_gives_its_workers_to_the_next():
    with array().map(lambda batch: {**batch, "pid": [os.getpid()]}, nb_workers=1).prefetch(2) as sequence:
        pids = set()
        for _ in range(4):
            for batch in sequence:
                pids |= set(batch["pid"])
                break
        assert len(pids) == 1


@pytest.mark.slow
def test_a_function_that_runs_in_the_thread_is_waited_for_a_while_and_the_rest_goes_after_it():
    begun, gate = threading.Event(), threading.Event()

    def wait(batch):
        if batch["x"][0] > 0:
            begun.set()
            gate.wait(LIMIT_S)
        return batch

    iterator = opened(array().map(wait).prefetch(2))
    next(iterator)
    assert begun.wait(LIMIT_S)
    iterator.close()
    (thread,) = threads()
    assert not iterator._source._closed
    gate.set()
    thread.join(LIMIT_S)
    assert iterator._source._closed


def test_a_close_ends_the_wait_of_another_thread():
    gate = threading.Event()
    sequence = array().map(lambda batch: gate.wait(LIMIT_S) and batch, nb_workers=1, backend="thread").prefetch(1)
    iterator = opened(sequence)
    raised = []

    def wait():
        try:
            next(iterator)
        except ClosedError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not threads():
        time.sleep(0.001)
    iterator.close()
    waiting.join(LIMIT_S)
    gate.set()
    sequence.close()
    assert len(raised) == 1


def test_a_function_may_close_the_chain_that_it_runs_in():
    def close(batch):
        if batch["x"][0] == 2:
            sequence.close()
        return batch

    sequence = array().map(close).prefetch(1)
    iterator = iter(sequence)
    with pytest.raises(ClosedError):
        numbers(iterator)
    wait_until_none_is_left()


# Left behind


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("options", [{}, {"nb_workers": 1, "backend": "thread"}], ids=["inline", "threads"])
def test_an_iterator_that_is_dropped_takes_its_thread_along(options):
    sequence = array().map(same, **options).prefetch(2)
    iterator = opened(sequence)
    next(iterator)
    kept = weakref.ref(iterator)
    del iterator
    assert kept() is None
    assert threads() == []
    sequence.close()


@pytest.mark.usefixtures("no_collector")
def test_an_error_that_was_caught_keeps_nothing():
    iterator = opened(array().batch(1, collate_fn=lambda items: 1 // 0).prefetch(2))
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    kept = weakref.ref(iterator)
    del iterator
    assert kept() is None
    assert threads() == []


@pytest.mark.usefixtures("no_collector")
def test_a_loop_that_raises_leaves_no_thread_once_its_error_is_gone():
    def loop():
        for _ in opened(array().prefetch(2)):
            raise KeyError

    with pytest.raises(KeyError):
        loop()
    assert threads() == []


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"nb_workers": 1}], ids=["inline", "processes"])
def test_two_hundred_epochs_left_after_a_batch_leave_nothing(options):
    process = psutil.Process()
    with array().map(same, **options).prefetch(3) as sequence:
        next(iter(sequence))
        nb_files, nb_threads = process.num_fds(), len(threading.enumerate())
        for _ in range(200):
            assert numbers([next(iter(sequence))]) == [0]
        assert process.num_fds() <= nb_files
        assert len(threading.enumerate()) <= nb_threads


def test_an_iterator_that_the_collector_finds_in_its_own_thread_ends_in_peace(monkeypatch):
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    held = []

    def drop(batch):
        if batch["x"][0] == 1:
            held.clear()
        return batch

    held.append(opened(array().map(drop).prefetch(3)))
    next(held[0])
    wait_until_none_is_left()
    assert (held, unraisable) == ([], [])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_copy_of_the_program_leaves_the_thread_alone():
    sequence = array().prefetch(1)
    iterator = iter(sequence)
    next(iterator)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            next(iterator)
        except ExecutorError:
            iterator.close()
            code = 0 if numbers(sequence) == list(range(6)) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert numbers(iterator) == [1, 2, 3, 4, 5]


# Whole programs

CHAIN = """
    import sys
    import threading
    import numpy as np
    from trw_pipeline import SamplerSequential, SequenceArray

    def work(batch):
        return batch

    def hang(batch):
        if batch["x"][0] > 0:
            threading.Event().wait()
        return batch

    def chain(function, **options):
        return SequenceArray({"x": np.arange(1000)}, SamplerSequential()).map(function, **options).prefetch(2)
"""


@pytest.mark.parametrize(
    ("function", "options", "last", "code"),
    [
        ("work", "", "", 0),
        ("hang", "", "1 // 0", 1),
        ("work", "nb_workers=2", "sys.exit(3)", 3),
        ("hang", "nb_workers=2", "", 0),
        ("hang", "nb_workers=2, backend='thread'", "sys.exit(3)", 3),
    ],
)
def test_a_program_that_leaves_an_epoch_open_ends_in_peace(program, function, options, last, code):
    result = program(f"""{CHAIN}
    sequence = chain({function}, {options})
    iterator = iter(sequence)
    next(iterator)
    {last}
    """).finish(timeout_s=LIMIT_S)
    assert (result.returncode, result.stdout) == (code, "")
    assert ("ZeroDivisionError" in result.stderr) is (code == 1)
    assert result.stderr.count("Traceback") == (code == 1)


@pytest.mark.parametrize("options", ["", "nb_workers=1"])
def test_an_interrupt_ends_the_wait_for_the_thread_and_the_program(program, options):
    started = program(f"""{CHAIN}
    iterator = iter(chain(hang, {options}))
    next(iterator)
    print("waits", flush=True)
    next(iterator)
    """)
    ended = started.end_by(signal.SIGINT, True, "waits", 0.3)
    assert ended.code == -signal.SIGINT
    assert ended.errors.count("Traceback") == 1
    assert ended.took_s < LIMIT_S
