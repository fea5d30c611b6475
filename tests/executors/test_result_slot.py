"""`empty_result`: an ordinary array everywhere, and inside a job one that lies where the result travels."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from trw_pipeline.executors.result_slot import empty_result

SIZE = 8192  # float64 values: 64 KB
WARM = range(4)
"""Jobs after which the pool knows how large results are, and has room for them."""


def results_of(executor, items) -> list:
    """Returns the values of jobs that run one after the other."""
    values = []
    for item in items:
        executor.put(item)
        values.append(executor.get(timeout=30).value)
    return values


def content(array) -> set[float]:
    return set(np.unique(array).tolist())


# Everywhere else


SHAPES = [5, (), (0,), (2, 3), [2, 3], np.int64(4), (np.int64(2), 3), np.array([2, 3])]


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
@pytest.mark.parametrize("dtype", [np.float64, "i2", np.dtype(">f4"), [("a", "i4"), ("b", "f8")], object])
def test_outside_a_job_it_is_an_ordinary_array(shape, dtype):
    array, usual = empty_result(shape, dtype), np.empty(shape, dtype)
    assert (array.shape, array.dtype, array.flags.writeable) == (usual.shape, usual.dtype, True)


def test_by_default_it_holds_float64():
    assert empty_result(3).dtype == np.float64


@pytest.mark.parametrize("backend", ["thread", "inline"])
def test_where_nothing_is_sent_it_is_an_ordinary_array(executor_of, backend):
    def fill(x):
        array = empty_result(SIZE)
        array[:] = x
        return array, array.base is None

    executor = executor_of(0 if backend == "inline" else 1, fill, backend=backend)
    assert [(content(array), own) for array, own in results_of(executor, range(6))] == [
        ({float(i)}, True) for i in range(6)
    ]


def test_without_an_arena_it_is_an_ordinary_array(executor_of):
    executor = executor_of(1, filled(SIZE), max_arena_bytes=0)
    assert [value["in slot"] for value in results_of(executor, range(6))] == 6 * [False]


# In a job


def filled(shape, dtype=np.float64):
    """Returns a function that makes an array of the number of the job, and says whether it lies in the slot."""

    def fill(x):
        import ctypes

        array = empty_result(shape, dtype)
        array[...] = x
        return {"x": array, "in slot": isinstance(array.base, ctypes.Array)}

    return fill


def test_a_result_that_is_made_in_its_slot_is_not_copied(executor_of):
    executor = executor_of(1, filled(SIZE))
    values = results_of(executor, range(20))
    assert [content(value["x"]) for value in values] == [{float(i)} for i in range(20)]
    assert all(value["in slot"] for value in values[len(WARM) :])
    assert executor.statistics()["bytes_arena"] >= 16 * SIZE * 8


@pytest.mark.parametrize(
    "shape", [SIZE, (64, 128), [2, 64, 64], np.int64(SIZE), (np.int64(64), 128), np.array([64, 128])], ids=repr
)
def test_in_a_job_it_takes_the_same_shapes(executor_of, shape):
    values = results_of(executor_of(1, filled(shape)), range(8))
    assert [(value["x"].shape, content(value["x"])) for value in values] == [
        (np.empty(shape).shape, {float(i)}) for i in range(8)
    ]


@pytest.mark.parametrize("shape", [-1, (-300, -300), (SIZE, 2.5), "10"], ids=repr)
def test_a_wrong_shape_is_the_error_of_numpy(executor_of, shape):
    def wrong(x):
        if x in WARM:
            return np.zeros(SIZE)
        try:
            empty_result(shape)
        except (ValueError, TypeError) as error:
            return type(error).__name__, filled(SIZE)(x)["x"]
        return "no error"

    name, after = results_of(executor_of(1, wrong), range(6))[-1]
    with pytest.raises((ValueError, TypeError)) as usual:
        np.empty(shape)
    assert (name, content(after)) == (usual.type.__name__, {5.0})


@pytest.mark.parametrize("dtype", ["f4", ">f8", "?", "c16", [("a", "i4"), ("b", "f8")]], ids=repr)
def test_in_a_job_it_takes_all_dtypes(executor_of, dtype):
    values = results_of(executor_of(1, filled(3 * SIZE, dtype)), range(2))
    values += results_of(executor_of(1, filled(3 * SIZE, dtype)), range(6))
    expected = np.empty(1, dtype)
    expected[...] = 5
    assert values[-1]["x"].dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
    assert (values[-1]["x"] == expected).all()


@pytest.mark.parametrize(
    ("nb_values", "dtype", "is_there"),
    [(SIZE, "f8", True), (2047, "f8", False), (2048, "f8", True), (SIZE, "O", False)],
)
def test_small_arrays_and_objects_do_not_lie_in_the_slot(executor_of, nb_values, dtype, is_there):
    def look(x):
        import ctypes

        return isinstance(empty_result(nb_values, dtype).base, ctypes.Array), np.zeros(SIZE)

    assert results_of(executor_of(1, look), range(6))[-1][0] is is_there


def test_what_does_not_fit_is_an_ordinary_array(executor_of):
    values = results_of(executor_of(1, lambda x: filled(SIZE if x in WARM else 100 * SIZE)(x)), range(5))
    assert (values[-1]["in slot"], content(values[-1]["x"]), values[-1]["x"].size) == (False, {4.0}, 100 * SIZE)


@pytest.mark.parametrize("nb_arrays", [3, 10, 40])
def test_several_arrays_of_a_job_do_not_overlap(executor_of, nb_arrays):
    """Those that find no room in the slot are ordinary ones."""

    def several(x):
        nb = 10 if x in WARM else nb_arrays
        arrays = [empty_result(SIZE + i) for i in range(nb)]
        for i, array in enumerate(arrays):
            array[:] = 100 * x + i
        return {str(i): array for i, array in enumerate(arrays)}

    value = results_of(executor_of(1, several), range(6))[-1]
    assert [content(array) for array in value.values()] == [{500.0 + i} for i in range(nb_arrays)]


def test_threads_of_a_job_get_arrays_of_their_own(executor_of):
    def in_threads(x):
        arrays = [None] * 16

        def make(i):
            arrays[i] = empty_result(SIZE)
            arrays[i][:] = 100 * x + i

        threads = [threading.Thread(target=make, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return arrays

    value = results_of(executor_of(1, in_threads), range(6))[-1]
    assert [content(array) for array in value] == [{500.0 + i} for i in range(16)]


PARTS = {
    "slice": lambda array: array[100:5000],
    "every second": lambda array: array[::2],
    "transposed": lambda array: array.reshape(64, -1).T,
    "backwards": lambda array: array[::-1],
    "as bytes": lambda array: array.view(np.uint8),
    "sum with another": lambda array: array + 0,
    "list of halves": lambda array: [array[: SIZE // 2], array[SIZE // 2 :]],
    "twice": lambda array: {"a": array, "b": array},
    "beside a copied one": lambda array: {"x": array, "y": array.copy()},
}


@pytest.mark.parametrize("part", PARTS)
def test_any_part_of_it_may_be_the_result(executor_of, part):
    take = PARTS[part]

    def make(x):
        array = empty_result(SIZE)
        array[:] = np.arange(SIZE) + x
        return take(array)

    def listed(value):
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        return [one.tolist() for one in parts]

    values = results_of(executor_of(1, make), range(8))
    assert [listed(value) for value in values] == [listed(take(np.arange(SIZE) + float(x))) for x in range(8)]


def test_one_that_is_not_returned_does_no_harm(executor_of):
    def make(x):
        empty_result(SIZE)[:] = -1
        return np.full(SIZE, float(x))

    assert [content(value) for value in results_of(executor_of(1, make), range(10))] == [{float(i)} for i in range(10)]


def test_a_job_that_fails_after_it_made_one_does_no_harm(executor_of):
    def make(x):
        array = empty_result(SIZE)
        array[:] = x
        return array if x % 2 == 0 else 1 // 0

    executor = executor_of(1, make, on_error="return")
    values = results_of(executor, range(12))
    assert [None if value is None else content(value) for value in values] == [
        {float(i)} if i % 2 == 0 else None for i in range(12)
    ]


# What the function does after its job


def test_an_array_that_the_function_keeps_is_not_written_over(executor_of):
    kept = []

    def keep(x):
        array = empty_result(SIZE)
        array[:] = x
        kept.append(array)
        return {"x": array, "wrong": [i for i, one in enumerate(kept) if (one != i).any()]}

    values = results_of(executor_of(1, keep), range(30))
    assert values[-1]["wrong"] == []
    assert [content(value["x"]) for value in values] == [{float(i)} for i in range(30)]


def test_an_array_that_the_function_let_go_of_is_used_again(executor_of):
    kept = []

    def keep_two(x):
        array = empty_result(SIZE)
        array[:] = x
        if x < 60:
            kept.append(array)
        del kept[:-2]
        return array

    executor = executor_of(1, keep_two, max_arena_bytes=8 * SIZE * 8)
    for i in range(80):
        assert results_of(executor, [i])[0][0] == i
    assert executor.statistics()["bytes_arena"] >= 18 * SIZE * 8  # while it kept them, results were copied out


def test_an_array_that_the_function_keeps_and_fills_again_leaves_results_as_they_were(executor_of):
    """Such as a buffer that is made once, by a worker that came when the size of results was known."""
    kept = []

    def fill_again(x):
        if x in WARM:
            return np.full(SIZE, float(x))
        if not kept:
            kept.append(empty_result(SIZE))
        kept[0][:] = x
        return kept[0]

    values = results_of(executor_of(1, fill_again), range(20))
    assert [content(value) for value in values] == [{float(i)} for i in range(20)]


def test_an_array_that_a_thread_fills_after_its_job_leaves_the_result_as_it_was(executor_of, tmp_path):
    done = tmp_path / "done"

    def leave_a_thread(x):
        if x == "wait":
            while not done.exists():
                time.sleep(0.002)
            return x
        array = empty_result(SIZE)
        array[:] = x
        if x == 5:

            def fill_late():
                time.sleep(0.1)
                array[:] = -1
                done.touch()

            threading.Thread(target=fill_late).start()
        return array

    values = results_of(executor_of(1, leave_a_thread), [*range(6), "wait"])
    assert [content(value) for value in values[:-1]] == [{float(i)} for i in range(6)]


def test_an_array_that_is_made_after_its_job_harms_no_result(executor_of, tmp_path):
    """By a thread that goes on when the job is over, and between two jobs."""
    go_on, made, fill, filled_ = (tmp_path / name for name in ("go on", "made", "fill", "filled"))

    def wait_for(path):
        while not path.exists():
            time.sleep(0.002)

    def make_late():
        wait_for(go_on)
        array = empty_result(SIZE // 2)
        made.touch()
        wait_for(fill)
        array[:] = -1
        filled_.touch()

    def leave_a_thread(x):
        if x in WARM:
            return np.full(4 * SIZE, float(x))
        if x == "leave":
            threading.Thread(target=make_late).start()
            return np.zeros(SIZE // 2)
        return np.full(4 * SIZE, float(x))

    executor = executor_of(1, leave_a_thread)
    results_of(executor, [*WARM, "leave"])
    go_on.touch()
    wait_for(made)
    values = results_of(executor, range(10, 14))
    fill.touch()
    wait_for(filled_)
    assert [content(value) for value in values] == [{float(i)} for i in range(10, 14)]


@pytest.mark.slow
def test_what_a_function_makes_in_the_slot_for_itself_does_not_keep_its_results_out(executor_of):
    """The next slots have room for both; what is too much for the arena is not asked for."""

    def scaled(x):
        scratch = empty_result(SIZE)
        scratch[:] = x
        return scratch * 2

    executor = executor_of(1, scaled, in_order=True)
    for i in range(20):
        executor.put(i)
        assert (executor.get(timeout=30).value == 2 * i).all()
    assert executor.statistics()["bytes_arena"] >= 15 * SIZE * 8
