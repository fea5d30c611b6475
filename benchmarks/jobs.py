"""What the workers of `bench_transport.py` and `bench_pool.py` do, ours and those of others.

Workers import this file, so it imports no torch, and nothing of ours but `empty_result`, where there is one.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Message = dict[str, np.ndarray]
"""Feature name -> array; what travels."""


def same(item: Any) -> Any:
    """Gives back what came."""
    return item


# Arrays


@dataclass(frozen=True)
class Payload:
    """Sends the same arrays with every message, so that nothing but the way to the main process takes time.

    Attributes:
        nb_arrays: in a message.
        nb_bytes: of all of them together, a multiple of 4 for each.
    """

    nb_arrays: int
    nb_bytes: int

    def __call__(self, item: Any = None) -> Message:
        """Gives float32 arrays (M,), made once in each process."""
        return _arrays(self.nb_arrays, self.nb_bytes // self.nb_arrays // 4)


@functools.cache
def _arrays(nb_arrays: int, nb_values: int) -> Message:
    return {f"x{number}": np.linspace(0, 1, nb_values, dtype=np.float32) for number in range(nb_arrays)}


@dataclass(frozen=True)
class Scaled:
    """Computes an array as fast as memory allows: each value times the gain of its column.

    Attributes:
        shape: (R, C) of the array.
        in_slot: whether it is computed into memory that the main process can read, so that nothing has to be copied.
    """

    shape: tuple[int, int]
    in_slot: bool

    def __call__(self, item: Any = None) -> np.ndarray:
        """Gives float32 (R, C)."""
        values, gain = _operands(self.shape)
        if not self.in_slot:
            return np.multiply(values, gain)
        from trw_pipeline import empty_result  # pyright: ignore[reportAttributeAccessIssue]

        return np.multiply(values, gain, out=empty_result(self.shape, np.float32))

    def into(self, out: np.ndarray) -> np.ndarray:
        """Does it in the calling process: computes in `out` (R, C), or a fresh array that is then copied there."""
        values, gain = _operands(self.shape)
        if self.in_slot:
            return np.multiply(values, gain, out=out)
        np.copyto(out, np.multiply(values, gain))
        return out


@functools.cache
def _operands(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.random(shape, dtype=np.float32), rng.random((1, shape[1]), dtype=np.float32)


def fill_queue(queue: Any, payload: Payload, as_tensors: bool) -> None:
    """Puts messages into a bounded queue, as fast as it takes them, until SIGTERM comes."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # the usual way out, which removes its folder
    queue.cancel_join_thread()  # nobody takes the last messages
    if as_tensors:
        import torch  # in a forked copy of a program that has it

        while True:
            # A new tensor each time: one that had been sent would stand in shared memory already.
            queue.put({name: torch.from_numpy(array) for name, array in payload().items()})
    while True:
        queue.put(payload())


# Time


@dataclass(frozen=True)
class Sleeps:
    """Waits as if for a disk, and uses no CPU.

    Attributes:
        durations_s: seconds of job `index`, in turn.
        with_image: whether an image comes with the result.
    """

    durations_s: tuple[float, ...]
    with_image: bool = False

    @classmethod
    def uneven(cls, nb_jobs: int, usual_s: float, slow_s: float, one_in: int) -> Sleeps:
        """Draws the order of jobs of which exactly one in `one_in` is slow; always the same one."""
        durations_s = np.full(nb_jobs, usual_s)
        durations_s[: nb_jobs // one_in] = slow_s
        return cls(tuple(np.random.default_rng(0).permutation(durations_s).tolist()))

    def __call__(self, index: int) -> Any:
        """Gives, later, the index back; or "index" and "x", (28, 28) float32."""
        time.sleep(self.durations_s[index % len(self.durations_s)])
        return {"index": index, "x": np.zeros((28, 28), np.float32)} if self.with_image else index


@dataclass(frozen=True)
class Stamped:
    """Waits, and says when it began and when it ended.

    Attributes:
        duration_s: of every job.
    """

    duration_s: float

    def __call__(self, index: int) -> tuple[float, float]:
        """Gives two times of `time.monotonic()`, which all processes of a machine share."""
        start = time.monotonic()
        time.sleep(self.duration_s)
        return start, time.monotonic()


# Life and death


@dataclass(frozen=True)
class Victim:
    """At its first attempt it reports and waits for its end; at the next one it tells when that began.

    The job of a negative item gives the number of its process.

    Attributes:
        folder: has a FIFO named "ready" for the report; other files there are ours.
        resident_bytes: memory that the process holds when it dies, which the system has to take down first.
        leaves_child: whether a child of the worker outlives it, with a copy of all its descriptors.
    """

    folder: str
    resident_bytes: int = 0
    leaves_child: bool = False

    def __call__(self, item: int) -> float:
        """Gives `time.monotonic()` of the start of the second attempt at `item`."""
        start = time.monotonic()
        if item < 0:
            return who(item)[0]
        if (mark := Path(self.folder, f"attempt-{item}")).exists():
            return start
        mark.touch()
        ballast = np.ones(self.resident_bytes, np.uint8)
        child = _idle_child() if self.leaves_child else None
        with open(Path(self.folder, "ready"), "w") as ready:
            ready.write(json.dumps({"pid": os.getpid(), "child": child, "resident_bytes": len(ballast)}) + "\n")
        while True:
            signal.pause()


def _idle_child() -> int:
    if pid := os.fork():
        return pid
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)  # should nobody end it
    while True:
        signal.pause()


def who(item: Any) -> tuple[int, bool]:
    """Gives the process, and whether torch is in it. It takes long enough that every worker gets its share."""
    time.sleep(0.005)
    return os.getpid(), "torch" in sys.modules


def echo(address: str) -> None:
    """Answers every message over bare ZeroMQ with itself, until an empty one comes."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(address)
        socket.send(b"here")
        while message := socket.recv():
            socket.send(message)
