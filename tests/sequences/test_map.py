"""`SequenceMap`: what becomes of the results of a function, without workers, in threads and in processes."""

from __future__ import annotations

import os
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trw_pipeline.errors import ClosedError, CodecError, ExecutorError, JobError
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

WORKERS = {
    "inline": {"nb_workers": 0},
    "threads": {"nb_workers": 2, "backend": "thread"},
    "processes": {"nb_workers": 2},
}
THREADS = WORKERS["threads"]


@pytest.fixture(params=WORKERS.values(), ids=WORKERS.keys())
def workers(request):
    return request.param


def array(nb=6, **options):
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential(), **options)


def numbers(items):
    return [int(x) for item in items for x in item["x"]]


def mapped(function, nb=6, **options):
    """The whole epoch, and everything closed."""
    with array(nb).map(function, **options) as sequence:
        return numbers(sequence)


# What a result becomes


def test_one_item_stays_one_item(workers):
    assert mapped(lambda batch: {"x": batch["x"] * 10}, **workers) == [0, 10, 20, 30, 40, 50]


def test_functions_of_a_list_are_chained(workers):
    functions = [lambda batch: {"x": batch["x"] + 1}, lambda batch: {"x": batch["x"] * 10}]
    assert mapped(functions, nb=3, **workers) == [10, 20, 30]


def test_a_list_is_unrolled(workers):
    assert mapped(lambda b: [{"x": b["x"]}, {"x": b["x"] + 100}], nb=3, **workers) == [0, 100, 1, 101, 2, 102]


def test_an_empty_list_gives_no_item(workers):
    assert mapped(lambda b: [] if b["x"][0] % 2 else b, **workers) == [0, 2, 4]


def test_empty_lists_only_end_the_epoch(workers):
    assert mapped(lambda b: [], **workers) == []


def test_none_is_a_failure(workers):
    with pytest.raises(JobError, match="returned None"):
        mapped(lambda b: None, **workers)


@pytest.mark.parametrize("item", [(1, 2), "text", 7, np.arange(3)], ids=type)
def test_anything_but_a_list_is_one_item(item, workers):
    with array(2).map(lambda b: item, **workers) as sequence:
        assert len(list(sequence)) == 2


def test_an_empty_source_gives_no_item(workers):
    assert mapped(lambda b: b, nb=0, **workers) == []


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(-1, 3), max_size=12))
def test_counts_are_the_same_with_and_without_workers(sizes):
    """BATCH-8: -1 is None, which is skipped; another number is a list of that length."""

    def function(batch):
        size = sizes[batch["x"][0]]
        return None if size < 0 else [{"x": batch["x"]}] * size

    expected = [i for i, size in enumerate(sizes) for _ in range(max(0, size))]
    for workers in WORKERS.values():
        assert mapped(function, nb=len(sizes), on_error="skip", **workers) == expected


def test_the_default_has_no_workers():
    pid = os.getpid()
    with array().map(lambda b: {"x": [os.getpid()]}) as sequence:
        assert numbers(sequence) == [pid] * 6


# Order


def uneven():
    def function(batch, rng):
        time.sleep(float(rng.uniform(0, 0.004)))
        return {"x": batch["x"]}

    return function


@pytest.mark.slow
@pytest.mark.parametrize("options", [THREADS, {"nb_workers": 3}], ids=["threads", "processes"])
def test_items_come_in_the_order_of_the_source_by_default(options):
    with array(60).map(uneven(), **options) as sequence:
        for _ in range(3):
            assert numbers(sequence) == list(range(60))


@pytest.mark.slow
@pytest.mark.parametrize("options", [THREADS, {"nb_workers": 3}], ids=["threads", "processes"])
def test_in_any_order_every_item_comes_once(options):
    with array(60).map(uneven(), in_order=False, **options) as sequence:
        for _ in range(3):
            assert sorted(numbers(sequence)) == list(range(60))


def test_in_any_order_a_slow_item_holds_up_none_but_what_waits_at_its_worker(tmp_path):
    gate = tmp_path / "open"

    def wait_for_gate(batch):
        while batch["x"][0] == 0 and not gate.exists():
            time.sleep(0.001)
        return batch

    with array(10).map(wait_for_gate, in_order=False, **THREADS) as sequence:
        iterator = iter(sequence)
        first = numbers(next(iterator) for _ in range(8))
        gate.touch()
        assert 0 not in first
        assert sorted(first + numbers(iterator)) == list(range(10))


class Endless(Sequence):
    """A user's own, that counts what is taken from it."""

    nb_taken = 0

    def __iter__(self):
        while True:
            self.nb_taken += 1
            yield {"x": np.array([self.nb_taken])}


@pytest.mark.parametrize("max_jobs", [0, 10**6])
def test_a_result_is_delivered_long_before_a_large_bound_is_reached(max_jobs):
    source = Endless()
    with source.map(lambda b: b, max_jobs_at_once=max_jobs, **THREADS) as sequence:
        iterator = iter(sequence)
        assert numbers(next(iterator) for _ in range(5)) == [1, 2, 3, 4, 5]
    assert source.nb_taken < 10**5


# Around the function


def test_preprocess_sees_each_item_and_the_sequence_before_it_is_sent(workers):
    seen = []

    def preprocess(item, source):
        seen.append((os.getpid(), source))
        return {"x": item["x"] + 1}

    with array(3).map(lambda b: {"x": b["x"] * 10}, preprocess_fn=preprocess, **workers) as sequence:
        assert numbers(sequence) == [10, 20, 30]
    assert seen == [(os.getpid(), sequence)] * 3


def test_collate_sees_each_item_and_the_sequence_before_it_is_delivered(workers):
    seen = []

    def collate(item, source):
        seen.append((os.getpid(), source))
        return {"x": item["x"] + 1}

    with array(2).map(lambda b: [{"x": b["x"] * 10}] * 2, collate_fn=collate, **workers) as sequence:
        assert numbers(sequence) == [1, 1, 11, 11]
    assert seen == [(os.getpid(), sequence)] * 4


def test_post_processing_runs_where_the_function_runs(workers):
    def post_process(results, channel_main_to_worker, channel_worker_to_main):
        return {"x": [os.getpid()]}

    with array(4).map(lambda b: b, worker_post_process_results_fun=post_process, **workers) as sequence:
        pids = set(numbers(sequence))
    assert (os.getpid() in pids) == ("nb_workers" in workers and workers != WORKERS["processes"])


def test_worker_init_runs_once_in_each_worker():
    def init():
        os.environ["TRW_TEST_STARTED"] = str(int(os.environ.get("TRW_TEST_STARTED", "0")) + 1)

    with array(20).map(
        lambda b: {"x": [int(os.environ["TRW_TEST_STARTED"])]}, nb_workers=2, worker_init=init
    ) as sequence:
        assert set(numbers(sequence)) | set(numbers(sequence)) == {1}


@pytest.mark.parametrize("name", ["preprocess_fn", "collate_fn"])
def test_an_error_around_the_function_is_raised_after_the_items_before_it(name, workers):
    def fails_at_3(item, source):
        if item["x"][0] == 3:
            raise KeyError("three")
        return item

    with array().map(lambda b: b, **{name: fails_at_3}, **workers) as sequence:
        iterator = iter(sequence)
        assert numbers(next(iterator) for _ in range(3)) == [0, 1, 2]
        with pytest.raises(KeyError, match="three"):
            next(iterator)
        assert numbers(iterator) == [4, 5]


@pytest.mark.parametrize("name", ["preprocess_fn", "collate_fn"])
def test_stop_iteration_around_the_function_is_an_error(name, workers):
    def stop(item, source):
        raise StopIteration

    with array().map(lambda b: b, **{name: stop}, **workers) as sequence, pytest.raises(RuntimeError, match="StopIt"):
        next(iter(sequence))


def test_stop_iteration_from_the_function_is_a_failure(workers):
    def stop(batch):
        raise StopIteration

    with pytest.raises(JobError, match="StopIteration"):
        mapped(stop, **workers)


# Memory


def test_functions_that_work_in_place_change_neither_the_source_nor_each_other(workers):
    """BATCH-7."""

    def in_place(batch):
        batch["x"] *= 2
        batch["list"].append(1)
        batch["meta"]["seen"] = True
        return batch

    split = {"x": np.arange(4), "list": [[0], [1], [2], [3]], "meta": {}}
    with SequenceArray(split, SamplerSequential()).map(in_place, **workers) as sequence:
        epochs = [[(batch["x"].tolist(), batch["list"]) for batch in sequence] for _ in range(3)]
    assert epochs == [[([2 * i], [[i], 1]) for i in range(4)]] * 3
    assert split["x"].tolist() == [0, 1, 2, 3]
    assert split["list"] == [[0], [1], [2], [3]]
    assert split["meta"] == {}


class Stored(Sequence):
    """A user's own, that hands out its samples themselves."""

    def __init__(self):
        super().__init__()
        self.stored = [{"x": np.array([i])} for i in range(3)]

    def __iter__(self):
        return iter(self.stored)


def test_functions_that_work_in_place_do_not_change_what_a_users_sequence_stores(workers):
    source = Stored()

    def in_place(batch):
        batch["x"] += 10
        return batch

    with source.map(in_place, **workers) as sequence:
        assert [numbers(sequence) for _ in range(2)] == [[10, 11, 12]] * 2
    assert numbers(source.stored) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 30_000])
def test_results_can_be_written_without_a_warning(size, workers):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with array(3).map(lambda b: {"x": np.zeros((1, size)), "t": torch.zeros(1, size)}, **workers) as sequence:
            for batch in list(sequence):
                batch["x"] += 1
                batch["t"] += 1
            for batch in list(sequence.collate()):
                batch["x"] += 1
                assert batch["x"].max() == 1


# Workers


def test_workers_stay_the_same_over_five_epochs():
    """USE-2: so that no later epoch waits for the start of a process, as the first does."""
    pids, until_first_s = set(), []
    with array(8).map(lambda b: {"x": [os.getpid()]}, nb_workers=2) as sequence:
        for _ in range(5):
            start = time.perf_counter()
            iterator = iter(sequence)
            first = next(iterator)
            until_first_s.append(time.perf_counter() - start)
            pids.update(numbers([first, *iterator]))
    assert len(pids) <= 2
    assert os.getpid() not in pids
    assert min(until_first_s[1:]) < until_first_s[0] / 2


def test_a_transform_that_was_changed_between_epochs_has_its_effect(workers):
    class Scale:
        factor = 1

        def __call__(self, batch):
            return {"x": batch["x"] * self.factor}

    scale = Scale()
    with array(3).map(scale, **workers) as sequence:
        found = [numbers(sequence)]
        scale.factor = 10
        found.append(numbers(sequence))
    assert found == [[0, 1, 2], [0, 10, 20]]


@pytest.mark.parametrize(("inner", "outer"), [(0, 1), (1, 0), (0, 0), (1, 1)])
def test_maps_with_and_without_workers_can_be_chained(inner, outer):
    options = {"backend": "thread"}
    chain = array().map(lambda b: {"x": b["x"] + 1}, nb_workers=inner, **options)
    with chain.map(lambda b: {"x": b["x"] * 10}, nb_workers=outer, **options) as sequence:
        assert numbers(sequence) == [10, 20, 30, 40, 50, 60]


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["forkserver", "spawn", "fork"])
def test_a_chain_gives_the_same_whatever_starts_its_workers(start_method):
    options = {"nb_workers": 2, "start_method": start_method}
    chain = array(9).map(lambda b: [{"x": b["x"]}, {"x": b["x"] + 100}], **options).batch(4)
    with chain.map(lambda b: {"x": b["x"] * 2}, **options).rebatch(6) as sequence:
        expected = [2 * x for i in range(9) for x in (i, i + 100)]
        assert [batch["x"].tolist() for batch in sequence] == [expected[i : i + 6] for i in range(0, 18, 6)]


def test_statistics_count_the_jobs_of_each_stage():
    chain = array(6).map(lambda b: b, name="load", **THREADS).map(lambda b: b, name="augment", **THREADS)
    with chain as sequence:
        list(sequence)
        figures = sequence.statistics()
    done = {stage: one["jobs_done"] for stage, one in figures.items()}
    assert done == {"0:SequenceArray": 0, "1:load": 6, "2:augment": 6, "consumer": 0}


# Wrong arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"nb_workers": -1}, ValueError, "nb_workers must be at least 0, got -1"),
        ({"nb_workers": 1.5}, TypeError, "nb_workers must be an int"),
        ({"max_jobs_at_once": -1}, ValueError, "max_jobs_at_once must be at least 0"),
        ({"backend": "gpu"}, ValueError, "backend must be one of"),
        ({"on_error": "ignore"}, ValueError, "on_error must be 'raise' or 'skip', got 'ignore'"),
        ({"on_error": "return"}, ValueError, "on_error must be 'raise' or 'skip', got 'return'"),
        ({"max_failures": 1.5}, ValueError, "max_failures must be"),
        ({"start_method": "magic"}, ValueError, "start_method"),
        ({"worker_init": 3}, TypeError, "worker_init must be callable"),
        ({"worker_post_process_results_fun": 3}, TypeError, "worker_post_process_results_fun must be callable"),
        ({"workers": 2}, TypeError, "unknown arguments"),
    ],
)
def test_a_wrong_argument_is_named_before_work_starts(arguments, error, message):
    with pytest.raises(error, match=message):
        array().map(lambda b: b, **arguments)


@pytest.mark.parametrize("function", [None, 3, [], [3]])
def test_a_function_that_can_not_be_called_is_refused(function):
    with pytest.raises((TypeError, ValueError), match="function_to_run"):
        array().map(function)


def test_a_function_that_can_not_be_sent_says_so():
    lock = threading.Lock()
    with array().map(lambda b: lock and b, nb_workers=1) as sequence, pytest.raises(CodecError, match="pickle"):
        iter(sequence)


def test_workers_that_can_not_start_say_why():
    def init():
        raise OSError("no disk")

    with (
        array().map(lambda b: b, nb_workers=1, worker_init=init) as sequence,
        pytest.raises(ExecutorError, match="no disk"),
    ):
        next(iter(sequence))


def test_a_stage_that_two_chains_share_is_closed_with_either():
    stage = array().map(lambda b: b, **THREADS)
    one, other = stage.batch(2), stage.batch(3)
    list(one)
    one.close()
    with pytest.raises(ClosedError):
        list(other)
    stage.close()
