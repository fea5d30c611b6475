"""Whoever does not know the key of the session is not heard, and nothing of what it sends is unpickled."""

from __future__ import annotations

import os
import pickle
import time
from contextlib import contextmanager

import pytest
import zmq

from trw_pipeline.executors.pickle_codec import PickleCodec
from trw_pipeline.executors.protocol import (
    KEY_BYTES,
    NO_SEED,
    REPLY,
    Order,
    Outbox,
    Reply,
    orders_in,
    received,
    replies_in,
)
from trw_pipeline.executors.reply_box import ReplyBox
from trw_pipeline.executors.slate import Slate
from trw_pipeline.executors.worker import Worker

KEY, OTHER = b"k" * KEY_BYTES, b"o" * KEY_BYTES


class Bomb:
    """Writes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def reply_message(key: bytes, reply: Reply, ticket: int, head: bytes) -> list:
    box = Outbox(key)
    box.add(REPLY.pack(reply, False, False, 0, len(head), ticket, 0.0, 0.0, 0), [head] if head else [])
    return box.take()


def order_message(key: bytes, order: Order, head: bytes) -> list:
    from trw_pipeline.executors.seat import Seat

    seat = Seat(0, key, Slate.in_memory(), None)
    seat.order(order, 1, [head] if head else [], NO_SEED)
    return seat.take_pack()


def test_a_message_with_the_key_is_read():
    (reply,) = replies_in(reply_message(KEY, Reply.RESULT, 5, b"head"))
    (order,) = orders_in(order_message(KEY, Order.JOB, b"head"))
    assert (reply.reply, reply.ticket, bytes(reply.frames[0])) == (Reply.RESULT, 5, b"head")
    assert (order.order, order.ticket, bytes(order.frames[0])) == (Order.JOB, 1, b"head")


STRANGE = {
    "another key": lambda message: [OTHER + message[0][KEY_BYTES:], *message[1:]],
    "no key": lambda message: [message[0][KEY_BYTES:], *message[1:]],
    "a part of the key": lambda message: [message[0][1:], *message[1:]],
    "only a part of the key": lambda message: [message[0][: KEY_BYTES - 1]],
    "the key later": lambda message: [b"x" + message[0], *message[1:]],
    "nothing": lambda message: [b""],
    "the key as a frame of its own": lambda message: [b"", message[0]],
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_message_without_the_key_holds_nothing(kind):
    context = zmq.Context()
    there, here = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    there.bind("inproc://strange")
    here.connect("inproc://strange")
    good = reply_message(KEY, Reply.RESULT, 5, b"head")
    there.send_multipart(STRANGE[kind](reply_message(KEY, Reply.RESULT, 5, b"head")))
    there.send_multipart(good)
    found = [received(here, KEY), received(here, KEY)]  # and it is no part of the next one
    there.close()
    here.close()
    context.term()
    assert found == [[], good]


def test_two_pools_have_keys_of_their_own(executor_of):
    keys = {executor_of(1, lambda x: x, backend="thread").pool._recruiter.door.key for _ in range(5)}
    assert len(keys) == 5
    assert {len(key) for key in keys} == {KEY_BYTES}


@contextmanager
def stranger(endpoint: str, identity: bytes):
    """A socket that has found the pool's address."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 1000
    socket.routing_id = identity
    socket.connect(endpoint)
    try:
        yield socket
    finally:
        socket.close()
        context.term()


@pytest.mark.parametrize("kind", STRANGE)
def test_a_stranger_at_the_pool_is_not_heard(executor_of, tmp_path, kind):
    executor = executor_of(1, lambda x: x)
    executor.put(1)
    executor.get(timeout=30)
    head = pickle.dumps(Bomb(tmp_path / "bomb"))
    ticket = executor.put(2)
    with stranger(executor.pool._recruiter.door.endpoint, b"nobody") as socket:
        for reply in Reply:
            socket.send_multipart(STRANGE[kind](reply_message(KEY, reply, ticket, head)))
    for i in range(20):
        executor.put(i)
    values = [executor.get(timeout=30).value for _ in range(21)]
    assert sorted(values) == sorted([2, *range(20)])
    assert not (tmp_path / "bomb").exists()


def test_a_stranger_with_the_key_but_no_seat_is_not_heard(executor_of, tmp_path):
    executor = executor_of(1, lambda x: x)
    ticket = executor.put(2)
    door = executor.pool._recruiter.door
    with stranger(door.endpoint, b"nobody") as socket:
        socket.send_multipart(reply_message(door.key, Reply.RESULT, ticket, pickle.dumps(Bomb(tmp_path / "bomb"))))
    assert executor.get(timeout=30).value == 2
    assert not (tmp_path / "bomb").exists()


def test_a_stranger_can_not_take_the_name_of_a_worker(executor_of, tmp_path):
    executor = executor_of(1, lambda x: x)
    executor.put(1)
    executor.get(timeout=30)
    ticket = executor.put(2)
    head = pickle.dumps(Bomb(tmp_path / "bomb"))
    (identity,) = executor.pool._seats
    with stranger(executor.pool._recruiter.door.endpoint, identity) as socket:
        socket.send_multipart(reply_message(OTHER, Reply.RESULT, ticket, head))
        assert executor.get(timeout=30).value == 2
        for i in range(20):
            executor.put(i)
        assert sorted(executor.get(timeout=30).value for _ in range(20)) == list(range(20))
    assert not (tmp_path / "bomb").exists()


@pytest.mark.parametrize("kind", STRANGE)
def test_a_stranger_at_a_worker_is_not_heard(tmp_path, kind):
    context = zmq.Context()
    pool, socket = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    pool.bind("inproc://pool")
    socket.connect("inproc://pool")
    worker = Worker(
        socket,
        KEY,
        PickleCodec("item"),
        PickleCodec("result"),
        (None, None),
        own_process=False,
        slate=Slate.in_memory(),
    )
    head = pickle.dumps(Bomb(tmp_path / "bomb"))
    for order in Order:
        pool.send_multipart(STRANGE[kind](order_message(KEY, order, head)))
    pool.send_multipart(order_message(KEY, Order.STOP, b""))
    worker.serve()
    hello = list(replies_in(pool.recv_multipart()))
    assert [record.reply for record in hello] == [Reply.HELLO]
    assert not pool.poll(0)
    pool.close()
    context.term()
    assert not (tmp_path / "bomb").exists()


def test_a_reply_carries_the_key():
    context = zmq.Context()
    pool, socket = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    pool.bind("inproc://pool")
    socket.connect("inproc://pool")
    box = ReplyBox(socket, KEY, holds_back=False)
    start = time.perf_counter()
    box.add(Reply.RESULT, 3, [b"head"], duration_s=time.perf_counter() - start)
    message = pool.recv_multipart()
    box.close()
    socket.close()
    pool.close()
    context.term()
    assert message[0].startswith(KEY)
