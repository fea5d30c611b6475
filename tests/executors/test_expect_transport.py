"""What a storm of faults has found on the way between program and workers, one promise each."""

from __future__ import annotations

import textwrap
import time

import numpy as np
import pytest

from trw_pipeline.executors.job_executor import JobExecutor

# Memory that is used again


@pytest.mark.parametrize("max_arena_bytes", [0, None])
@pytest.mark.parametrize("nb_bytes", [100, 20_000, 2_000_000])
def test_a_function_may_return_the_same_memory_from_every_call(executor_of, nb_bytes, max_arena_bytes):
    """However results travel, and whether or not several of them share a message."""
    buffer = np.zeros(nb_bytes, np.uint8)

    def fill_again(x):
        buffer[:] = x
        return {"first": buffer, "second": [buffer]}

    executor = executor_of(1, fill_again, in_order=True, max_arena_bytes=max_arena_bytes)
    for i in range(100):
        executor.put(i)
    values = [executor.get(timeout=30).value for _ in range(100)]
    assert [i for i, value in enumerate(values) if not (value["first"] == i).all()] == []
    assert [i for i, value in enumerate(values) if not (value["second"][0] == i).all()] == []


# Ctrl-C

INTERRUPTS = """
    import gc, random, signal, threading
    import psutil
    from trw_pipeline.executors.job_executor import JobExecutor

    def interrupted(delay_s, act):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, delay_s)
                act()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            return True
        return False

    def what_there_is():
        gc.collect()
        return threading.active_count(), psutil.Process().num_fds()

    def make():
        return JobExecutor(2, bytes, 8, backend={backend!r})

    def work(executor):
        for i in range(20):
            while not executor.has_room():
                executor.get(timeout=30)
            executor.put(100_000)
        while executor.nb_in_flight:
            executor.get(timeout=30)

    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    moments = random.Random(5)
    for _ in range(3):
        with make() as executor:
            work(executor)
    before = what_there_is()
    nb = 0
    for _ in range(60):
{body}
    after = what_there_is()
    print(nb > 10, after == before or (before, after))
"""

BODIES = {
    "open": """
        opened = []
        nb += interrupted(10 ** moments.uniform(-4, -1.5), lambda: opened.append(make()))
        for executor in opened:
            executor.close()
    """,
    "work": """
        with make() as executor:
            nb += interrupted(10 ** moments.uniform(-4, -1.5), lambda: work(executor))
            executor.reset()
            work(executor)
    """,
    "close": """
        executor = make()
        executor.put(10)
        executor.get(timeout=30)
        nb += interrupted(10 ** moments.uniform(-5, -2.5), executor.close)
        executor.close()
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", BODIES)
@pytest.mark.parametrize("backend", ["thread", "process"])
def test_an_interrupt_is_never_another_error_and_leaves_nothing(program, backend, moment):
    """At random moments: `finish` fails if a process is left; and nothing may be said of what was being freed."""
    body = textwrap.indent(textwrap.dedent(BODIES[moment]), " " * 8)
    result = program(INTERRUPTS.format(backend=backend, body=body)).finish(timeout_s=100)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "True True\n"


def test_an_executor_that_was_interrupted_in_the_midst_of_a_message_is_closed_at_once():
    """In threads: what is left of the message must not be taken for the beginning of the next one."""
    with JobExecutor(4, lambda x: bytes(x), backend="thread") as executor:
        executor.put(10)
        executor.get(timeout=30)
        executor.put(10)
        assert executor.pool._socket.poll(30_000)
        executor.pool._socket.recv()  # the first part, as if the interrupt had come behind it
        start = time.monotonic()
        executor.close()
        assert time.monotonic() - start < 10
