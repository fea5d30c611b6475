"""Small jobs and results share messages, slow ones are alone, and nothing is held back for long."""

from __future__ import annotations

import threading
import time

import numpy as np
import psutil
import pytest
import zmq

from trw_pipeline.executors import reply_box
from trw_pipeline.executors import seat as seat_module
from trw_pipeline.executors.protocol import KEY_BYTES, NO_SEED, Reply, orders_in, replies_in
from trw_pipeline.executors.reply_box import HOLD_BYTES, HOLD_S, ReplyBox
from trw_pipeline.executors.seat import PACK_BYTES, PACK_S, Held, Seat
from trw_pipeline.executors.slate import Slate

KEY = bytes(KEY_BYTES)
SOON_S = 20.0
"""Nothing may be held back for as long; what is stuck comes never."""


# Jobs


def packs(nb: int, expected_s: float | None, head: bytes = b"head") -> list[int]:
    """Returns how many jobs each message carries, of `nb` that come one after the other to a worker that has work."""
    seat = Seat(0, KEY, Slate.in_memory(), None)
    seat.give(0, Held(NO_SEED, [head], None), expected_s)
    seat.take_pack()
    sizes, waiting = [], 0
    for ticket in range(1, nb + 1):
        waiting += 1
        if seat.give(ticket, Held(NO_SEED, [head], None), expected_s):
            sizes.append(len(list(orders_in(seat.take_pack()))))
            waiting = 0
    return [*sizes, waiting] if waiting else sizes


def test_tiny_jobs_share_messages():
    assert packs(40, PACK_S / 10) in ([10, 10, 10, 10], [11, 11, 11, 7])  # a float sum may fall just short


def test_a_slow_job_is_alone():
    assert packs(3, PACK_S) == packs(3, 10.0) == [1, 1, 1]


def test_jobs_of_an_unknown_length_are_alone():
    assert packs(3, None) == [1, 1, 1]


def test_a_message_does_not_grow_beyond_its_size():
    assert packs(6, 1e-9, head=bytes(PACK_BYTES // 2)) == [2, 2, 2]


def test_a_worker_that_has_nothing_to_do_does_not_wait_for_company():
    seat = Seat(0, KEY, Slate.in_memory(), None)
    assert seat.give(0, Held(NO_SEED, [b"head"], None), 1e-9)


def test_a_pack_keeps_the_order_of_the_jobs():
    seat = Seat(0, KEY, Slate.in_memory(), None)
    for ticket in range(20):
        seat.give(ticket, Held(NO_SEED, [b"head"], None), 1e-9)
    assert [order.ticket for order in orders_in(seat.take_pack())] == list(range(20))


def test_large_buffers_of_many_jobs_in_one_message_stay_with_their_jobs():
    seat = Seat(0, KEY, Slate.in_memory(), None)
    for ticket in range(5):
        seat.give(ticket, Held(NO_SEED, [b"%d" % ticket, *[b"%d buffer" % ticket] * ticket], None), 1e-9)
    orders = list(orders_in(seat.take_pack()))
    assert [[bytes(frame) for frame in order.frames] for order in orders] == [
        [b"%d" % ticket, *[b"%d buffer" % ticket] * ticket] for ticket in range(5)
    ]


# Results


@pytest.fixture
def box_and_pool():
    """The reply box of a worker process, and the other end of its socket."""
    context = zmq.Context()
    pool, socket = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    pool.bind("inproc://pool")
    socket.connect("inproc://pool")
    box = ReplyBox(socket, KEY, holds_back=True)
    yield box, pool
    box.close()
    socket.close()
    pool.close(linger=0)
    context.term()


def received(pool, nb: int) -> list[int]:
    """Returns how many replies each message carries, until `nb` have come."""
    sizes: list[int] = []
    while sum(sizes) < nb and pool.poll(SOON_S * 1000):
        sizes.append(len(list(replies_in(pool.recv_multipart()))))
    return sizes


def test_tiny_results_share_messages(box_and_pool, monkeypatch):
    monkeypatch.setattr(reply_box, "HOLD_S", 1000.0)  # however slow this machine is
    box, pool = box_and_pool
    monkeypatch.setattr(box, "_look_after", lambda: None)
    for ticket in range(50):
        box.add(Reply.RESULT, ticket, [b"head"], duration_s=1e-6)
    box.send()
    assert received(pool, 50) == [50]


def test_the_result_of_a_slow_job_is_sent_at_once_with_what_was_held(box_and_pool, monkeypatch):
    box, pool = box_and_pool
    monkeypatch.setattr(box, "_look_after", lambda: None)
    box.add(Reply.RESULT, 0, [b"head"], duration_s=1e-6)
    box.add(Reply.RESULT, 1, [b"head"], duration_s=2 * HOLD_S)
    assert sum(received(pool, 2)) == 2


def test_much_is_sent_at_once(box_and_pool, monkeypatch):
    box, pool = box_and_pool
    monkeypatch.setattr(box, "_look_after", lambda: None)
    box.add(Reply.RESULT, 0, [bytes(HOLD_BYTES)], duration_s=1e-6)
    assert received(pool, 1) == [1]


def test_what_is_held_goes_out_though_nobody_sends_it(box_and_pool):
    """As while the next job runs."""
    box, pool = box_and_pool
    for ticket in range(3):
        box.add(Reply.RESULT, ticket, [b"head"], duration_s=1e-6)
        assert received(pool, 1) == [1]


def test_it_closes_in_the_very_moment_in_which_its_thread_finds_nothing_held(box_and_pool):
    """Else a worker that ends after a short job never does."""
    box, pool = box_and_pool
    looks, is_closing = threading.Event(), threading.Event()

    class Held(threading.Event):
        def clear(self):
            looks.set()
            is_closing.wait(SOON_S)
            super().clear()

        def set(self):
            super().set()
            if looks.is_set():
                is_closing.set()

    box._held = held = Held()
    box.add(Reply.RESULT, 0, [b"head"], duration_s=1e-6)
    received(pool, 1)
    looks.wait(SOON_S)
    closes = threading.Thread(target=box.close)
    closes.start()
    closes.join(3.0)
    has_closed = not closes.is_alive()
    held.set()
    closes.join()
    assert has_closed


def test_between_threads_nothing_is_held_back():
    context = zmq.Context()
    pool, socket = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    pool.bind("inproc://pool")
    socket.connect("inproc://pool")
    box = ReplyBox(socket, KEY, holds_back=False)
    for ticket in range(3):
        box.add(Reply.RESULT, ticket, [b"head"], duration_s=1e-6)
    assert received(pool, 3) == [1, 1, 1]
    box.close()
    socket.close()
    pool.close()
    context.term()


# Through a pool


def waiting_at(gate):
    """Returns a function that waits for a file at "slow"."""

    def work(x):
        import time

        while x == "slow" and not gate.exists():
            time.sleep(0.002)
        return x

    return work


def warmed(executor, nb: int = 200):
    """Lets the executor find out that jobs are tiny."""
    for i in range(nb):
        executor.put(i)
    for _ in range(nb):
        executor.get(timeout=30)
    return executor


def test_many_tiny_jobs_take_few_messages(executor_of, monkeypatch):
    executor = warmed(executor_of(1, lambda x: x))
    monkeypatch.setattr(seat_module, "PACK_S", 1000.0)  # however slow this machine is
    sent = []
    post = executor.pool._post
    monkeypatch.setattr(executor.pool, "_post", lambda seat, message: sent.append(message) or post(seat, message))
    for i in range(1000):
        executor.put(i)
    assert sorted(executor.get(timeout=30).value for _ in range(1000)) == list(range(1000))
    assert len(sent) < 100


@pytest.mark.parametrize("nb_workers", [1, 2])
def test_a_small_result_comes_though_the_next_job_takes_long(executor_of, tmp_path, nb_workers):
    gate = tmp_path / "open"
    executor = warmed(executor_of(nb_workers, waiting_at(gate), in_order=True))
    for item in ("a", "b", "c", "slow"):
        executor.put(item)
    assert [executor.get(timeout=SOON_S).value for _ in range(3)] == ["a", "b", "c"]
    gate.touch()
    assert executor.get(timeout=SOON_S).value == "slow"


def test_small_jobs_behind_a_slow_one_run_at_the_other_worker(executor_of, tmp_path):
    gate = tmp_path / "open"
    executor = warmed(executor_of(2, waiting_at(gate)))
    executor.put("slow")
    for i in range(50):
        executor.put(i)
    assert sorted(executor.get(timeout=SOON_S).value for _ in range(50)) == list(range(50))
    gate.touch()
    assert executor.get(timeout=SOON_S).value == "slow"


def test_a_job_is_sent_though_it_has_no_company(executor_of, tmp_path):
    """`poll` is enough: nobody has to wait for it."""
    gate = tmp_path / "open"
    executor = warmed(executor_of(1, waiting_at(gate)))
    executor.put("slow")
    executor.put("tiny")
    executor.poll()
    gate.touch()
    deadline = time.monotonic() + SOON_S
    while not executor.poll() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert executor.get(timeout=SOON_S).value == "slow"
    assert executor.get(timeout=SOON_S).value == "tiny"


def test_jobs_are_sent_though_the_caller_only_puts(executor_of, tmp_path):
    """A worker that has nothing to do gets the first one at once; what came beside it goes with the next one."""
    executor = warmed(executor_of(1, lambda x: x if isinstance(x, int) else x.touch() or x))
    executor.put(tmp_path / "first")
    deadline = time.monotonic() + SOON_S
    while not (tmp_path / "first").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert (tmp_path / "first").exists()
    executor.get(timeout=SOON_S)


@pytest.mark.slow
def test_sizes_and_times_of_all_kinds_in_one_pool_are_right(executor_of):
    def work(item):
        import time

        kind, i = item
        if kind == 0:
            time.sleep(0.003)
        return {"x": np.full((3, 300, 20_000)[kind], float(i)), "i": i}

    executor = warmed(executor_of(2, work, in_order=True), 0)
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, 400).tolist()
    values = []
    for i, kind in enumerate(kinds):
        if executor.nb_in_flight >= 30:
            values.append(executor.get(timeout=SOON_S).value)
        executor.put((kind, i))
    while executor.nb_in_flight:
        values.append(executor.get(timeout=SOON_S).value)
    assert [value["i"] for value in values] == list(range(400))
    assert all((value["x"] == i).all() for i, value in enumerate(values))


def test_a_failed_job_in_a_pack_is_the_only_one_that_fails(executor_of):
    executor = warmed(executor_of(2, lambda x: 1 // 0 if x == 77 else x, on_error="return", in_order=True), 70)
    for i in range(70, 170):
        executor.put(i)
    results = [executor.get(timeout=SOON_S) for _ in range(100)]
    assert [result.value for result in results] == [None if i == 77 else i for i in range(70, 170)]


def test_jobs_of_a_pack_that_are_given_up_do_not_run(executor_of, tmp_path):
    gate, log = tmp_path / "open", tmp_path / "log"

    def work(x):
        import time

        while x == "slow" and not gate.exists():
            time.sleep(0.002)
        with log.open("a") as file:
            file.write(f"{x} ")
        return x

    executor = executor_of(1, work)
    executor.put("slow")
    for i in range(50):
        executor.put(i)
    deadline = time.monotonic() + SOON_S
    while executor.statistics()["jobs_running"] == 0 and time.monotonic() < deadline:
        executor.poll()
    executor.reset()
    time.sleep(0.3)  # what reset has sent travels in the background
    gate.touch()
    executor.put("after")
    assert executor.get(timeout=SOON_S).value == "after"
    assert log.read_text().split() == ["slow", "after"]


@pytest.mark.slow
def test_jobs_that_are_moved_away_from_behind_a_slow_one_run_once(executor_of, tmp_path):
    """Also those that are done, and whose results are held back while the slow one runs."""
    log = tmp_path / "log"

    def work(item):
        import time

        with log.open("a") as file:
            file.write(f"{item[0]} ")
        time.sleep(item[1])
        return item[0]

    executor = executor_of(3, work)
    slow = np.random.default_rng(0).random(2000) < 0.1
    for i in range(2000):
        executor.put((i, 0.012 if slow[i] else 0))
    assert sorted(executor.get(timeout=SOON_S).value for _ in range(2000)) == list(range(2000))
    assert sorted(map(int, log.read_text().split())) == list(range(2000))


@pytest.mark.slow
def test_jobs_are_sent_while_somebody_looks_for_results_and_takes_none(executor_of, tmp_path):
    """`put` promises: at the next `get` or `poll` at the latest."""
    log = tmp_path / "log"

    def note(x):
        with log.open("a") as file:
            file.write(".")
        return x

    executor = executor_of(1, note)
    for i in range(300):  # jobs that are known to be short share messages
        executor.put(i)
    for _ in range(300):
        executor.get(timeout=30)
    executor.put("first")
    while not executor.poll():
        pass
    for i in range(5):
        executor.put(i)
    deadline = time.monotonic() + 20
    while log.stat().st_size < 306 and time.monotonic() < deadline:
        assert executor.poll()
    assert log.stat().st_size == 306


@pytest.mark.slow
def test_a_worker_that_comes_late_is_heard_while_somebody_looks_for_results_and_takes_none(executor_of, tmp_path):
    log = tmp_path / "log"

    def note(x):
        time.sleep(0.005)
        with log.open("a") as file:
            file.write(".")
        return x

    executor = executor_of(2, note)
    late = psutil.Process(executor.pool.workers()[1].pid)
    late.suspend()
    try:
        executor.put(0)
        deadline = time.monotonic() + 20
        while not executor.poll() and time.monotonic() < deadline:
            pass
        for i in range(4):
            executor.put(i)
    finally:
        late.resume()
    while log.stat().st_size < 5 and time.monotonic() < deadline:
        assert executor.poll()
    assert log.stat().st_size == 5
