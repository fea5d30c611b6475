"""Shared memory that is used again and again: never while anybody can see it, whoever that is and whatever died."""

from __future__ import annotations

import gc
import mmap
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trw_pipeline.executors import arena as arena_module
from trw_pipeline.executors.arena import MIN_ARENA_BYTES, Arena, ArenaCodec, Slot, slot_of
from trw_pipeline.executors.pickle_codec import PickleCodec

KB, MB = 1024, 1024**2
SIZE = 8 * KB  # float64 values of an array that travels through the arena: 64 KB


@pytest.fixture
def arena():
    with_room = Arena(MB)
    yield with_room
    with_room.close()


def view_of(arena: Arena, shelf, nb_bytes: int = 100 * KB) -> np.ndarray:
    """Takes a slot, whose only user is the array."""
    slot = arena.take(shelf, nb_bytes)
    array = np.frombuffer(memoryview(slot.lease()).cast("B"), np.uint8)
    slot.leave()
    return array


def addresses(nb: int, arena: Arena, shelf) -> set[int]:
    return {view.ctypes.data for view in [view_of(arena, shelf) for _ in range(nb)]}


# The slots


@pytest.mark.parametrize("nb_bytes", [1, 4096, 4097, 100_000, 1_000_000])
def test_a_slot_holds_what_was_asked_for_and_little_more(arena, nb_bytes):
    assert nb_bytes <= arena.take(arena.shelf(), nb_bytes).size <= 1.125 * nb_bytes + mmap.PAGESIZE


def test_the_slot_that_came_back_last_is_taken_first(arena):
    shelf = arena.shelf()
    first, second = arena.take(shelf, 4096), arena.take(shelf, 4096)
    second.leave()
    first.leave()
    assert [arena.take(shelf, 4096), arena.take(shelf, 4096)] == [first, second]


def test_a_free_slot_of_one_shelf_is_not_taken_from_another(arena):
    mine, other = arena.shelf(), arena.shelf()
    slot = arena.take(mine, 4096)
    slot.leave()
    assert arena.take(other, 4096) is not slot


def test_nothing_is_given_beyond_the_limit(arena):
    shelf = arena.shelf()
    taken = [arena.take(shelf, 300 * KB) for _ in range(5)]
    assert [slot is not None for slot in taken] == [True, True, True, False, False]
    assert arena.nb_bytes <= arena.max_bytes


def test_free_slots_of_other_shelves_make_room(arena):
    shelf = arena.shelf()
    for slot in [arena.take(shelf, 300 * KB) for _ in range(3)]:
        slot.leave()
    assert arena.take(arena.shelf(), 900 * KB) is not None
    assert arena.nb_bytes <= arena.max_bytes


def test_a_slot_that_is_too_small_gives_its_memory_back(arena):
    shelf = arena.shelf()
    arena.take(shelf, 100 * KB).leave()
    arena.take(shelf, 200 * KB)
    assert os.fstat(arena.fd).st_blocks * 512 == arena.nb_bytes <= 230 * KB


def test_slots_that_nobody_needed_for_long_are_given_back(arena, monkeypatch):
    monkeypatch.setattr(arena_module, "LOOK_AFTER_S", 0.0)
    shelf = arena.shelf()
    for slot in [arena.take(shelf, 100 * KB) for _ in range(8)]:
        slot.leave()
    for _ in range(3):
        arena.take(shelf, 100 * KB).leave()
    assert arena.nb_bytes <= 120 * KB


def test_a_free_slot_is_not_given_back_while_it_was_needed_a_moment_ago(arena):
    shelf = arena.shelf()
    for _ in range(3):
        for slot in [arena.take(shelf, 100 * KB) for _ in range(4)]:
            slot.leave()
    assert len(shelf.free) == 4


VIEWS = {
    "array": lambda view: view,
    "slice": lambda view: view[10:20],
    "other shape and type": lambda view: view[: 8 * KB].view(np.float32).reshape(-1, 4).T,
    "memoryview": lambda view: memoryview(view)[5:],
    "frombuffer": lambda view: np.frombuffer(memoryview(view), np.int16),
    "array over a buffer": lambda view: np.ndarray(10, np.int8, view, 3),
    "cycle": lambda view: _cycle(view),
    "tensor": lambda view: __import__("torch").from_numpy(view)[3:9],
    "iterator": lambda view: iter(view),
}


def _cycle(view):
    cycle = [view]
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize("kind", VIEWS)
def test_a_slot_is_not_used_again_before_the_last_view_is_gone(arena, kind):
    shelf = arena.shelf()
    array = view_of(arena, shelf)
    place = array.ctypes.data
    kept = VIEWS[kind](array)
    del array
    while_seen = place in addresses(3, arena, shelf)
    del kept
    gc.collect()
    assert (while_seen, place in addresses(4, arena, shelf)) == (False, True)


def test_the_last_view_may_die_in_another_thread(arena):
    shelf = arena.shelf()
    box = [view_of(arena, shelf)]
    place = box[0].ctypes.data
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert addresses(1, arena, shelf) == {place}


@pytest.mark.slow
def test_views_that_die_in_many_threads_free_each_slot_once(arena):
    shelf = arena.shelf()

    def take_and_drop():
        for _ in range(300):
            with lock:  # the pool takes from one thread at a time
                slot = arena.take(shelf, 4096)
                views = [memoryview(slot.lease()) for _ in range(3)]
                slot.leave()
            del slot, views

    lock = threading.Lock()
    threads = [threading.Thread(target=take_and_drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, shelf.free))) == len(shelf.free) == arena.nb_bytes // 4096
    assert not any(slot.is_in_use for slot in shelf.free)


def test_a_slot_can_be_given_back_while_its_last_view_is_about_to_be_gone(arena, monkeypatch):
    """Another thread has freed the slot, and has not come to free the view."""
    shelf = arena.shelf()
    box = [view_of(arena, shelf, 100 * KB)]
    has_left, go_on = threading.Event(), threading.Event()

    def leave(slot):
        usual(slot)
        has_left.set()
        go_on.wait(10)

    usual = Slot.leave
    monkeypatch.setattr(Slot, "leave", leave)
    thread = threading.Thread(target=box.clear)
    thread.start()
    has_left.wait(10)
    try:
        assert arena.take(shelf, 200 * KB) is not None
    finally:
        go_on.set()
        thread.join()


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 300 * KB), st.integers(0, 5)), max_size=40))
@settings(deadline=None, max_examples=60)
def test_whatever_is_taken_and_dropped_nobody_sees_the_memory_of_another(steps):
    arena = Arena(MB)
    shelf = arena.shelf()
    held: list[tuple[int, np.ndarray]] = []
    for number, (nb_bytes, drop) in enumerate(steps):
        if drop < len(held):
            held.pop(drop)
        slot = arena.take(shelf, nb_bytes)
        if slot is not None:
            view = np.frombuffer(memoryview(slot.lease()).cast("B"), np.uint8)
            slot.leave()
            view[:] = number
            held.append((number, view))
        assert arena.nb_bytes <= arena.max_bytes
    assert all((view == number).all() for number, view in held)
    arena.close()


def test_views_outlive_the_arena():
    arena = Arena(MB)
    view = view_of(arena, arena.shelf())
    view[:] = 7
    arena.close()
    arena.close()
    assert (view == 7).all()


# The codec


@pytest.mark.parametrize(("nb_bytes", "is_there"), [(MIN_ARENA_BYTES - 64, False), (MIN_ARENA_BYTES, True)])
def test_large_buffers_lie_in_the_arena(arena, nb_bytes, is_there):
    _, frame = ArenaCodec(PickleCodec("item"), arena).encode({"x": np.zeros(nb_bytes // 8)})
    assert (slot_of(frame) is not None) == is_there


def test_what_finds_no_place_travels_as_it_is(arena):
    array = np.arange(2 * MB // 8)
    codec = ArenaCodec(PickleCodec("item"), arena)
    frames = codec.encode({"x": array})
    assert slot_of(frames[1]) is None
    assert (codec.decode(frames)["x"] == array).all()


def test_the_buffers_of_one_object_share_a_slot_and_do_not_overlap(arena):
    codec = ArenaCodec(PickleCodec("item"), arena)
    obj = {str(i): np.full(20_001 + i, i, np.uint8) for i in range(10)}
    frames = codec.encode(obj)
    slots = {slot_of(frame)[0] for frame in frames[1:]}
    assert len(slots) == 1
    assert all((value == int(name)).all() for name, value in codec.decode(frames).items())
