"""Results and items in shared memory: what anybody holds stays as it is, whatever else runs, ends or dies."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from trw_pipeline.executors import arena as arena_module
from trw_pipeline.executors.job_executor import JobExecutor

KB = 1024
SIZE = 8 * KB  # float64 values of an array that travels through the arena: 64 KB


def arena_mappings() -> int:
    """Returns how many pieces of arenas are mapped in this program."""
    return sum("trw-arena" in line for line in Path("/proc/self/maps").read_text().splitlines())


def until(condition, limit_s: float = 20.0) -> bool:
    """Waits for a condition of another process or thread; whether it came."""
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return bool(condition())


def _cycle(view):
    cycle = [view]
    cycle.append(cycle)
    return cycle


def held_view(value, kind):
    """What a user may keep of a result, all of it with the number of the job in it."""
    import torch

    kinds = {
        "batch": lambda: value,
        "slice": lambda: value["x"][100:200:3],
        "tensor": lambda: torch.from_numpy(value["x"])[5:],
        "memoryview": lambda: memoryview(value["x"])[7:],
        "cycle": lambda: _cycle(value),
        "transposed": lambda: value["x"].reshape(64, -1).T[1:],
    }
    return kinds[kind]()


def content(kept) -> set[float]:
    while isinstance(kept, (list, dict)):
        kept = kept["x"] if isinstance(kept, dict) else kept[0]
    return set(np.unique(np.asarray(kept)).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["batch", "slice", "tensor", "memoryview", "cycle", "transposed"])
def test_what_is_held_of_a_result_stays_while_hundreds_more_come(executor_of, kind):
    executor = executor_of(2, lambda x: {"x": np.full(SIZE, float(x))}, 8, in_order=True)
    held = {}
    for i in range(400):
        if i >= 8:
            value = executor.get(timeout=30).value
            if (i - 8) % 10 == 0:
                held[i - 8] = held_view(value, kind)
        executor.put(i)
    assert executor.statistics()["bytes_arena"] > 300 * SIZE * 8
    assert {i: content(kept) for i, kept in held.items()} == {i: {float(i)} for i in held}


def results_of(executor, items) -> list:
    """Returns the values in order, with a few jobs in flight; the executor is in order."""
    values = []
    for nb_put, item in enumerate(items):
        if nb_put >= 6:
            values.append(executor.get(timeout=30).value)
        executor.put(item)
    while executor.nb_in_flight:
        values.append(executor.get(timeout=30).value)
    return values


@pytest.mark.parametrize("end", ["close", "drop", "kill"])
def test_results_stay_when_who_made_them_is_gone(executor_of, end):
    executor = executor_of(1, lambda x: (os.getpid(), np.full(SIZE, float(x))), in_order=True)
    values = results_of(executor, range(20))
    if end == "kill":
        os.kill(values[0][0], signal.SIGKILL)
        later = results_of(executor, range(100, 140))
        assert {pid for pid, _ in values}.isdisjoint(pid for pid, _ in later)
        assert [content(array) for _, array in later] == [{float(i)} for i in range(100, 140)]
    elif end == "close":
        executor.close()
    executor = None
    assert [content(array) for _, array in values] == [{float(i)} for i in range(20)]


@pytest.mark.slow
def test_a_worker_that_dies_while_it_writes_harms_nobody(executor_of, tmp_path):
    def write(x):
        from trw_pipeline.executors.result_slot import empty_result

        array = empty_result(SIZE)
        array[: SIZE // 2] = x
        if x % 7 == 3 and not (tmp_path / str(x)).exists():
            (tmp_path / str(x)).touch()
            array[:] = -1
            os.kill(os.getpid(), signal.SIGKILL)
        array[SIZE // 2 :] = x
        return array

    executor = executor_of(2, write, in_order=True)
    values = results_of(executor, range(60))
    assert len(list(tmp_path.iterdir())) == 9
    assert [content(array) for array in values] == [{float(i)} for i in range(60)]


def test_an_item_that_the_function_keeps_is_not_written_over(executor_of):
    kept = []

    def keep(x):
        kept.append(x)
        return {i for i, one in enumerate(kept) if (one != i).any()}

    executor = executor_of(1, keep, 2, in_order=True)
    assert results_of(executor, [np.full(SIZE, i) for i in range(40)])[-1] == set()


def test_a_job_that_is_tried_again_sees_the_item_as_it_was(executor_of, tmp_path):
    def spoil_and_die_once(x):
        seen = sorted(set(x["x"].tolist()))
        x["x"][:] = -1
        if not (tmp_path / "tried").exists():
            (tmp_path / "tried").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return seen

    executor = executor_of(1, spoil_and_die_once)
    executor.put({"x": np.full(SIZE, 3.0)})
    result = executor.get(timeout=30)
    assert (result.value, result.attempts) == ([3.0], 2)


def test_an_item_that_is_read_during_a_reset_stays(executor_of, tmp_path):
    gate, log = tmp_path / "open", tmp_path / "log"

    def read_slowly(x):
        if x[0] == 1:
            (tmp_path / "reading").touch()
            while not gate.exists():
                time.sleep(0.002)
            log.write_text(str(sorted(set(x.tolist()))))
        return x

    executor = executor_of(1, read_slowly, in_order=True)
    executor.put(np.full(SIZE, 1.0))
    assert until(lambda: executor.poll() or (tmp_path / "reading").exists())
    executor.reset()
    for i in range(5):
        executor.put(np.full(SIZE, 2.0 + i))
    gate.touch()
    assert [content(executor.get(timeout=30).value) for _ in range(5)] == [{2.0 + i} for i in range(5)]
    assert log.read_text() == "[1.0]"


def test_a_forked_copy_of_the_program_reads_its_batch_while_the_program_goes_on(executor_of):
    executor = executor_of(1, lambda x: np.full(SIZE, float(x)), in_order=True)
    batch = results_of(executor, range(10))[-1]
    go_on, tells = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(go_on, 1)
        os._exit(0 if (batch == 9).all() else 1)
    del batch
    results_of(executor, range(100, 150))
    os.write(tells, b"x")
    _, status = os.waitpid(child, 0)
    os.close(go_on)
    os.close(tells)
    assert os.waitstatus_to_exitcode(status) == 0


def test_results_that_are_held_fill_the_arena_and_the_others_come_as_messages(executor_of):
    executor = executor_of(2, lambda x: np.full(SIZE, float(x)), in_order=True, max_arena_bytes=5 * 64 * KB)
    values = results_of(executor, range(50))
    figures = executor.statistics()
    assert [content(array) for array in values] == [{float(i)} for i in range(50)]
    assert 0 < figures["bytes_arena"] <= 5 * 64 * KB
    assert figures["bytes_frames"] >= 45 * 64 * KB


def test_an_arena_that_was_full_is_used_again(executor_of):
    executor = executor_of(1, lambda x: np.full(SIZE, float(x)), in_order=True, max_arena_bytes=5 * 64 * KB)
    values = results_of(executor, range(20))
    before = executor.statistics()["bytes_arena"]
    del values
    for i in range(10):
        executor.put(i)
        executor.get(timeout=30)
    assert executor.statistics()["bytes_arena"] >= before + 9 * 64 * KB


@pytest.mark.parametrize("limit", [None, 300 * KB, 0])
@pytest.mark.parametrize("order", ["growing", "shrinking", "alternating"])
def test_results_of_any_sizes_are_right(executor_of, order, limit):
    growing = [int(1.2**i) for i in range(60)]  # float64 values: up to 380 KB
    alternating = [size for pair in zip(growing, growing[::-1], strict=True) for size in pair]
    sizes = {"growing": growing, "shrinking": growing[::-1], "alternating": alternating}[order]
    executor = executor_of(2, lambda n: {"x": np.full(n, float(n)), "same": n}, in_order=True, max_arena_bytes=limit)
    values = results_of(executor, sizes)
    assert [(value["x"].size, content(value)) for value in values] == [(n, {float(n)}) for n in sizes]


@pytest.mark.parametrize("window_bytes", [64 * KB, 300 * KB])
def test_results_and_items_are_right_over_many_windows(executor_of, monkeypatch, window_bytes):
    """Windows come and go with the slots that are cut out of them, at both ends."""
    monkeypatch.setattr(arena_module, "WINDOW_BYTES", window_bytes)
    executor = executor_of(2, lambda x: {"x": x["x"] * 2, "n": x["n"]}, in_order=True)
    sizes = [SIZE + 1000 * (i % 7) + 20 * i for i in range(150)]
    values = results_of(executor, [{"x": np.full(size, float(i)), "n": i} for i, size in enumerate(sizes)])
    held = values[::10]
    del values
    values = results_of(executor, [{"x": np.full(size, float(i)), "n": i} for i, size in enumerate(sizes)])
    assert [(v["n"], v["x"].size, content(v)) for v in values] == [(i, size, {2.0 * i}) for i, size in enumerate(sizes)]
    assert [content(v) for v in held] == [{20.0 * i} for i in range(15)]


@pytest.mark.slow
def test_windows_whose_slots_are_gone_are_not_mapped_any_more(executor_of, monkeypatch):
    monkeypatch.setattr(arena_module, "WINDOW_BYTES", 64 * KB)
    executor = executor_of(1, lambda x: np.zeros(x), 2)
    for i in range(200):
        executor.put(SIZE + 50 * i)
        executor.get(timeout=30)
    (worker,) = executor.statistics()["per_worker"]
    maps = Path(f"/proc/{worker['pid']}/maps").read_text()
    assert arena_mappings() < 20
    assert sum("trw-arena" in line for line in maps.splitlines()) < 20


@pytest.mark.slow
def test_a_result_of_a_thousand_parts_is_right(executor_of):
    def thousand(x):
        return [np.full(20_000, (x + i) % 251, np.uint8) for i in range(1000)]

    executor = executor_of(1, thousand, 2, in_order=True)
    for x, value in enumerate(results_of(executor, range(4))):
        assert [content(part) for part in value] == [{(x + i) % 251} for i in range(1000)]


def test_a_result_may_be_written_to_while_others_come(executor_of):
    executor = executor_of(2, lambda x: {"a": np.full(SIZE, float(x)), "b": np.full(SIZE, float(x))}, in_order=True)
    held = []
    for i in range(60):
        executor.put(i)
        value = executor.get(timeout=30).value
        value["a"] += 1000
        held.append(value)
    assert [(content(v["a"]), content(v["b"])) for v in held] == [({i + 1000.0}, {float(i)}) for i in range(60)]


def test_a_function_may_fill_the_same_buffer_again_for_each_job(executor_of):
    buffer = np.zeros(SIZE)

    def fill(x):
        buffer[:] = x
        return {"x": buffer, "slice": buffer[: SIZE // 2]}

    values = results_of(executor_of(1, fill, in_order=True), range(40))
    assert [(content(v["x"]), content(v["slice"])) for v in values] == [({float(i)}, {float(i)}) for i in range(40)]


def test_items_that_come_back_as_they_are_share_no_memory(executor_of):
    executor = executor_of(2, lambda x: x, in_order=True)
    items = [{"x": np.full(SIZE, float(i)), "name": str(i)} for i in range(40)]
    values = results_of(executor, items)
    for value in values:
        value["x"] *= -1
    assert [content(item) for item in items] == [{float(i)} for i in range(40)]
    assert [content(value) for value in values] == [{-float(i)} for i in range(40)]


@pytest.mark.slow
def test_results_whose_last_view_dies_in_another_thread_are_right(executor_of):
    executor = executor_of(2, lambda x: np.full(SIZE + x % 5 * 3000, float(x)), 8, in_order=True)
    wrong: list[int] = []
    boxes: list[list] = []
    enough = threading.Event()

    def check_and_drop():
        while not enough.is_set() or boxes:
            if boxes:
                i, array = boxes.pop()
                if content(array) != {float(i)}:
                    wrong.append(i)

    thread = threading.Thread(target=check_and_drop)
    thread.start()
    try:
        for i in range(300):
            if i >= 8:
                boxes.append([i - 8, executor.get(timeout=30).value])
            executor.put(i)
    finally:
        enough.set()
        thread.join()
    assert wrong == []


# What it costs


def test_max_arena_bytes_0_is_no_shared_memory(executor_of):
    gc.collect()
    before = arena_mappings()
    executor = executor_of(1, lambda x: x, in_order=True, max_arena_bytes=0)
    values = results_of(executor, [np.full(SIZE, i) for i in range(10)])
    assert [content(value) for value in values] == [{float(i)} for i in range(10)]
    assert executor.statistics()["bytes_arena"] == 0
    assert arena_mappings() == before


@pytest.mark.parametrize("wrong", [-1, 1.5, "1 GB", True])
def test_a_limit_that_is_none_is_refused(executor_of, wrong):
    with pytest.raises((ValueError, TypeError), match="max_arena_bytes"):
        executor_of(1, lambda x: x, max_arena_bytes=wrong)


def test_slots_are_used_again_when_results_are_dropped(executor_of):
    executor = executor_of(2, lambda x: np.full(SIZE, float(x)))
    places = set()
    for i in range(100):
        executor.put(i)
        places.add(executor.get(timeout=30).value.ctypes.data)
    assert len(places) < 20


@pytest.mark.slow
def test_memory_and_descriptors_are_given_back_when_all_is_closed_and_dropped():
    def run_and_close():
        with JobExecutor(1, lambda x: np.full(SIZE, float(x)), in_order=True) as executor:
            results_of(executor, range(30))

    run_and_close()  # the fork server is there now
    gc.collect()
    before = arena_mappings(), len(os.listdir("/proc/self/fd"))
    gc.disable()
    try:
        run_and_close()
        assert (arena_mappings(), len(os.listdir("/proc/self/fd"))) == before
    finally:
        gc.enable()


@pytest.mark.slow
def test_held_results_do_not_use_up_the_files_that_a_program_may_open(program):
    """1024 is the usual limit, and a reservoir may well hold a thousand samples."""
    result = program("""
        import resource
        import numpy as np
        from trw_pipeline.executors.job_executor import JobExecutor
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        with JobExecutor(1, lambda x: open("/dev/null").close() or np.full(8192, float(x)), in_order=True) as executor:
            held = []
            for i in range(400):
                executor.put(i)
                held.append(executor.get(timeout=30).value)
            open("/dev/null").close()
            print(all((one == i).all() for i, one in enumerate(held)))
        """).finish()
    assert (result.stdout, result.stderr) == ("True\n", "")


@pytest.mark.slow
def test_workers_that_are_replaced_leave_no_slots_behind(executor_of):
    limit = 32 * 64 * KB
    executor = executor_of(1, lambda x: np.full(SIZE, float(x)), 2, max_tasks_per_worker=5, max_arena_bytes=limit)
    for i in range(200):
        executor.put(i)
        executor.get(timeout=30)
    assert executor.pool._recruiter.room.arena.nb_bytes <= limit / 2


@pytest.mark.slow
def test_workers_that_are_forked_leave_no_memory_behind(executor_of):
    """They do not look at the results that the program holds at that moment."""
    limit = 32 * 64 * KB
    executor = executor_of(
        1, lambda x: np.full(SIZE, float(x)), 4, max_tasks_per_worker=5, start_method="fork", max_arena_bytes=limit
    )
    for i in range(200):
        executor.put(i)
        if i >= 3:
            executor.get(timeout=30)
    assert os.fstat(executor.pool._recruiter.room.arena.fd).st_blocks * 512 <= limit
