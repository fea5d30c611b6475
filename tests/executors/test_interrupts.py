"""Ctrl-C in the middle of things: it is the caller's, and an executor is whole afterwards or says that it is not."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import zmq
from toy_descriptors import nb_descriptors

from trw_pipeline.errors import ExecutorError, WouldBlock
from trw_pipeline.executors.job_executor import JobExecutor


class InterruptedSocket(zmq.Socket):
    """The socket of a pool that hands out the first part of a message, and then a Ctrl-C."""

    _nb_parts = 0

    def recv(self, *arguments, **keywords):
        part = super().recv(*arguments, **keywords)
        self._nb_parts += 1
        if self._nb_parts == 2:
            raise KeyboardInterrupt
        return part


def interrupted_in_a_message(executor):
    """Lets an answer arrive, and a Ctrl-C between two of its parts."""
    executor.put(1)
    executor.get(timeout=30)
    executor.put(2)
    executor.pool._socket.poll(30_000)
    executor.pool._socket = InterruptedSocket.shadow(executor.pool._socket)
    with pytest.raises(KeyboardInterrupt):
        executor.get(timeout=30)


def test_after_an_interrupt_within_a_message_every_use_says_so(executor_of):
    executor = executor_of(1, lambda x: x)
    interrupted_in_a_message(executor)
    with pytest.raises(ExecutorError, match=r"was interrupted among its jobs; reset\(\)"):
        executor.get(timeout=30)
    with pytest.raises(ExecutorError, match="was interrupted"):
        executor.put(3)


def test_after_an_interrupt_within_a_message_a_reset_starts_afresh(executor_of):
    executor = executor_of(1, lambda x: 10 * x)
    interrupted_in_a_message(executor)
    executor.reset()
    executor.put(3)
    assert executor.get(timeout=30).value == 30


@pytest.mark.parametrize("pool_kind", ["thread", "process"])
def test_an_interrupt_while_waiting_does_no_harm(executor_of, pool_kind, tmp_path):
    gate = tmp_path / "open"

    def wait_for_gate(x):
        while not gate.exists():
            time.sleep(0.002)
        return x

    executor = executor_of(1, wait_for_gate, backend=pool_kind)
    executor.put(5)
    with pytest.raises(WouldBlock):
        executor.get(timeout=0.3)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        executor.get(timeout=30)
    timer.join()
    gate.touch()
    assert executor.get(timeout=30).value == 5


def test_an_interrupt_while_a_worker_starts_leaves_none(executor_of, monkeypatch):
    """It is put off until the start is over; then the pool that was being made is closed."""
    from multiprocess import process

    start = process.BaseProcess.start

    def start_and_interrupt(self):
        start(self)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(process.BaseProcess, "start", start_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        executor_of(2, lambda x: x)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="not on this system")
@pytest.mark.parametrize(("method", "opening"), [("forkserver", "open"), ("fork", "pidfd_open")])
def test_an_interrupt_while_a_worker_is_replaced_leaves_no_descriptor(monkeypatch, method, opening):
    """It comes when something was opened that nobody has taken yet."""

    def interrupt_once_open(*arguments):
        monkeypatch.undo()
        descriptor = getattr(os, opening)(*arguments)
        signal.raise_signal(signal.SIGINT)
        return descriptor

    with JobExecutor(1, bytes, start_method=method):
        pass  # what lives as long as the program
    before = nb_descriptors()
    with JobExecutor(1, bytes, start_method=method) as executor:
        executor.put(1)
        os.kill(executor.get(timeout=30).pid, signal.SIGKILL)
        executor.put(1)
        monkeypatch.setattr(os, opening, interrupt_once_open)
        with pytest.raises(KeyboardInterrupt):
            executor.get(timeout=30)
    assert nb_descriptors() == before


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inline", "thread", "process"])
def test_an_executor_survives_interrupts_at_any_moment(program, backend):
    """After each one a reset must give a pool that answers, rightly and completely."""
    result = program(f"""
        import random, signal
        import numpy as np
        from trw_pipeline.executors.job_executor import JobExecutor

        def interrupt(*_):
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        moments = random.Random(4)
        executor = JobExecutor(2, lambda x: (x, np.full(20_000, x)), backend={backend!r}, in_order=True)
        interrupts = 0
        for round_ in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.0001, 0.02))
                for i in range(10_000):
                    executor.put(i)
                    x, array = executor.get(timeout=30).value
                    assert x == i and array[-1] == i
            except KeyboardInterrupt:
                interrupts += 1
            executor.reset()
            for i in range(6):
                executor.put((i + round_) % 50)
            values = [executor.get(timeout=30).value for _ in range(6)]
            assert [x for x, _ in values] == [(i + round_) % 50 for i in range(6)], values
            assert all(array[0] == x for x, array in values)
            assert executor.nb_in_flight == 0
        executor.close()
        print(interrupts > 30)
        """).finish(timeout_s=100)
    assert result.stdout == "True\n", result.stderr
