"""The jobs of the fault storm: what each of them does in its worker, and how its answer is recognised.

Workers import this file, so it imports nothing heavy.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from trw_pipeline.executors.result_slot import empty_result

NB_PARTS = 1000
"""So many arrays are in the result of a "parts" job."""

_DTYPES = (np.uint8, np.int16, np.float32, np.complex128)
_BLOCK_BYTES = 4099  # prime, so that no page of a large array looks like another one

_buffer = np.empty(0, np.uint8)


@dataclass(frozen=True)
class Work:
    """One job, as it is planned.

    Attributes:
        serial: number of the job in the whole storm; everything in the result follows from it.
        kind: what the job does, see `GOOD` and `BAD`.
        nb_bytes: about how large the result is.
    """

    serial: int
    kind: str
    nb_bytes: int


GOOD = {"array": 12, "parts": 4, "echo": 8, "slow": 6, "buffer": 8, "in its place": 6, "dies once": 1}
"""Kinds of jobs that have a value -> how often. One array; many; the array of the item; after 20 ms; the same memory in
each call; made where it travels; and one that kills its worker, the first time."""

BAD = {
    "raises": "JobError",
    "wants to exit": "JobError",
    "returns a lock": "CodecError",
    "item with a lock": "CodecError",
    "exits": "WorkerLostError",
    "crashes": "WorkerLostError",
    "hangs": "JobTimeoutError",
}
"""Kinds of jobs that have none -> name of their error."""

ONLY_IN_PROCESSES = ("buffer", "dies once", "returns a lock", "exits", "crashes", "hangs")


def item_of(work: Work, folder: str) -> dict[str, Any]:
    """Returns what is put: the job, and whatever else its kind needs.

    Args:
        work: the job.
        folder: where a job that dies once leaves word that it has.
    """
    item: dict[str, Any] = {"work": work}
    if work.kind == "echo":
        item["data"] = array_of(work.serial, work.nb_bytes)
    elif work.kind == "dies once":
        item["flag"] = f"{folder}/{work.serial}"
    elif work.kind == "item with a lock":
        item["data"] = [threading.Lock()]
    return item


def run(item: dict[str, Any]) -> dict[str, Any]:
    """The mapped function."""
    work: Work = item["work"]
    _misbehave(work, item)
    if work.kind == "slow":
        time.sleep(0.02)
    if work.kind == "returns a lock":
        return {"serial": work.serial, "data": threading.Lock()}
    if work.kind == "buffer":
        return {"serial": work.serial, "data": _in_the_buffer(work)}
    if work.kind == "in its place":
        made = data_of(work)
        place = empty_result(made.shape, made.dtype)
        place[...] = made
        return {"serial": work.serial, "data": place}
    return {"serial": work.serial, "data": item["data"] if work.kind == "echo" else data_of(work)}


def _misbehave(work: Work, item: dict[str, Any]) -> None:
    if work.kind == "raises":
        raise ValueError(f"work {work.serial}")
    if work.kind == "wants to exit":
        raise SystemExit(work.serial)
    if work.kind == "exits":
        os._exit(work.serial % 100)
    if work.kind == "crashes":
        faulthandler.disable()  # its text, again and again, would only hide what the storm has to say
        ctypes.string_at(0)
    if work.kind == "hangs":
        threading.Event().wait()
    if work.kind == "dies once" and not os.path.exists(item["flag"]):
        os.close(os.open(item["flag"], os.O_CREAT))
        os.kill(os.getpid(), signal.SIGKILL)


def _in_the_buffer(work: Work) -> np.ndarray:
    global _buffer
    if _buffer.nbytes < work.nb_bytes:
        _buffer = np.empty(work.nb_bytes, np.uint8)
    whole = _buffer[: work.nb_bytes]
    whole[:] = np.resize(_block(work.serial), work.nb_bytes)
    return whole


def _block(serial: int) -> np.ndarray:
    return np.random.default_rng(serial).integers(0, 256, _BLOCK_BYTES, np.uint8)


def array_of(serial: int, nb_bytes: int) -> np.ndarray:
    """Returns an array of about that size, every byte of which follows from `serial`."""
    dtype = np.dtype(_DTYPES[serial % len(_DTYPES)])
    whole = np.resize(_block(serial), nb_bytes // dtype.itemsize * dtype.itemsize).view(dtype)
    return whole.reshape(2, -1) if whole.size % 2 == 0 else whole


def data_of(work: Work) -> Any:
    """Returns what the result of a good job holds: an array, or a dict of arrays."""
    if work.kind == "parts":
        whole = array_of(work.serial, max(work.nb_bytes, 16 * NB_PARTS)).reshape(-1)
        return dict(enumerate(np.array_split(whole, NB_PARTS)))
    if work.kind == "buffer":
        return np.resize(_block(work.serial), work.nb_bytes)
    return array_of(work.serial, work.nb_bytes)


def is_right(work: Work, value: Any) -> bool:
    """Whether that is the result of the job, to the last byte."""
    if value["serial"] != work.serial:
        return False
    data, expected = value["data"], data_of(work)
    if not isinstance(expected, dict):
        return _equal(data, expected)
    return data.keys() == expected.keys() and all(_equal(data[key], part) for key, part in expected.items())


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    same_kind = a.dtype == b.dtype and a.shape == b.shape
    return same_kind and np.array_equal(np.ravel(a).view(np.uint8), np.ravel(b).view(np.uint8))  # bytes: there are NaNs
