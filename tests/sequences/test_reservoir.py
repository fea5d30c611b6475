"""`SequenceAsyncReservoir`: keeps results, serves them again, takes in fresh ones between epochs."""

from __future__ import annotations

import itertools
import logging
import threading

import numpy as np
import pytest

from trw_pipeline.errors import ClosedError, ExecutorError, JobError, WouldBlock
from trw_pipeline.sequences.samplers import SamplerClassResampling, SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

WORKERS = {
    "inline": {"backend": "inline"},
    "threads": {"nb_workers": 2, "backend": "thread"},
    "processes": {"nb_workers": 2},
}
INLINE = WORKERS["inline"]
THREADS = WORKERS["threads"]


@pytest.fixture(params=WORKERS.values(), ids=WORKERS.keys())
def workers(request):
    return request.param


def array(nb=10, sampler=None):
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential() if sampler is None else sampler).with_seed(3)


def numbers(items):
    """The samples in drawn lists of results."""
    return [int(x) for drawn in items for result in drawn for x in result["x"]]


def same(batch):
    return batch


def wait_for_jobs(sequence, nb):
    """Waits until that many jobs have been done, without an epoch being opened."""
    executor = sequence._reservoir.executor
    while executor.nb_in_flight and not (executor.take_in() and len(executor._table.finished) >= nb):
        threading.Event().wait(0.001)


# Filling


def test_the_first_epoch_starts_when_the_minimum_is_in(workers):
    with array().async_reservoir(8, lambda b: b, min_reservoir_samples=5, **workers) as sequence:
        epoch = numbers(sequence)
        assert len(epoch) >= 5
        assert len(epoch) == len(set(epoch)) == sequence.reservoir_size()


def test_inline_the_first_epoch_has_just_the_minimum():
    with array().async_reservoir(8, same, min_reservoir_samples=5, **INLINE) as sequence:
        assert numbers(sequence) == [0, 1, 2, 3, 4]


def test_inline_each_epoch_has_one_fresh_result_and_the_oldest_goes():
    with array().async_reservoir(4, same, min_reservoir_samples=4, **INLINE) as sequence:
        epochs = [numbers(sequence) for _ in range(4)]
    assert epochs == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]


def test_a_source_smaller_than_the_minimum_repeats_itself(workers):
    with array(3).async_reservoir(8, lambda b: b, min_reservoir_samples=8, **workers) as sequence:
        counts = np.bincount(numbers(sequence))
    assert counts.sum() == 8
    assert counts.min() >= 2


def test_the_source_is_shuffled_anew_in_every_pass():
    with array(6, SamplerRandom()).async_reservoir(18, same, min_reservoir_samples=18, **INLINE) as sequence:
        epoch = numbers(sequence)
    passes = [epoch[0:6], epoch[6:12], epoch[12:18]]
    assert [sorted(one) for one in passes] == [list(range(6))] * 3
    assert passes[0] != passes[1] != passes[2]


def test_reservoir_size_is_bounded(workers):
    with array(20).async_reservoir(4, lambda b: b, **workers) as sequence:
        assert sequence.reservoir_size() == 0
        for _ in range(12):
            assert 1 <= len(numbers(sequence)) <= 4
        assert sequence.reservoir_size() <= 4
        assert sequence.statistics()["1:<lambda>"]["size"] == sequence.reservoir_size()


# Between epochs


def test_the_content_is_constant_during_an_epoch():
    """All jobs in flight end in the middle of the epoch; what is drawn is still what was there at its start."""
    gate = threading.Event()

    def later(batch):
        if batch["x"][0] >= 4:
            gate.wait(20)
        return batch

    with array(20).async_reservoir(4, later, min_reservoir_samples=4, max_jobs_at_once=2, **THREADS) as sequence:
        iterator = iter(sequence)
        drawn = numbers([next(iterator)])
        gate.set()
        wait_for_jobs(sequence, 1)
        sequence.fill_queue()
        assert sorted(drawn + numbers(iterator)) == [0, 1, 2, 3]


@pytest.mark.parametrize("max_jobs", [1, 2, 5])
def test_between_two_epochs_at_most_max_jobs_at_once_are_replaced(max_jobs):
    with array(500).async_reservoir(
        20, same, min_reservoir_samples=20, max_jobs_at_once=max_jobs, **THREADS
    ) as sequence:
        before = numbers(sequence)
        for _ in range(8):
            wait_for_jobs(sequence, max_jobs)
            after = numbers(sequence)
            fresh = set(after) - set(before)
            assert len(fresh) <= max_jobs
            assert after[: 20 - len(fresh)] == before[len(fresh) :]  # the oldest were pushed out
            before = after
        assert max(before) >= 20 + 7


def test_a_slow_job_does_not_let_the_others_pile_up():
    """In order, results wait for the first one; they count against `max_jobs_at_once` while they do."""
    gate = threading.Event()

    def slow_at_first(batch):
        if batch["x"][0] == 0:
            gate.wait(20)
        return batch

    with array(500).async_reservoir(8, slow_at_first, 4, max_jobs_at_once=3, in_order=True, **THREADS) as sequence:
        iterator = iter(sequence)
        for _ in range(50):
            with pytest.raises(WouldBlock):
                iterator.next_item(blocking=False)
            assert sequence.statistics()["1:slow_at_first"]["jobs_in_flight"] <= 3
            threading.Event().wait(0.001)
        gate.set()
        assert numbers(iterator)[:4] == [0, 1, 2, 3]


def test_none_as_max_jobs_at_once_is_the_number_of_workers():
    with array().async_reservoir(4, same, **THREADS) as sequence:
        list(sequence)
        assert sequence.statistics()["1:same"]["capacity"] == 2


def test_an_interruption_keeps_reservoir_and_source():
    with array().async_reservoir(4, same, min_reservoir_samples=4, **INLINE) as sequence:
        assert numbers(itertools.islice(sequence, 2)) == [0, 1]
        assert numbers(sequence) == [1, 2, 3, 4]


def test_two_epochs_open_at_once_draw_from_what_each_found():
    with array().async_reservoir(3, same, min_reservoir_samples=3, **INLINE) as sequence:
        older, newer = iter(sequence), iter(sequence)
        drawn = [numbers([next(iterator)])[0] for iterator in (older, newer, older, newer)]
        assert drawn == [0, 1, 1, 2]
        assert (numbers(older), numbers(newer)) == ([2], [3])


def test_writing_into_what_was_drawn_does_not_change_the_reservoir(workers):
    with array(4).async_reservoir(4, lambda b: {**b, "list": [[0]]}, 4, **workers) as sequence:
        for drawn in sequence:
            drawn[0]["x"] += 100
            drawn[0]["list"][0].append(1)
        for drawn in sequence:
            assert drawn[0]["x"][0] < 4
            assert drawn[0]["list"] == [[0]]


# Drawing


def test_a_sampler_draws_from_the_reservoir():
    sampler = SamplerRandom(replacement=True, nb_samples_to_generate=50, batch_size=20)
    with array().async_reservoir(5, same, 5, reservoir_sampler=sampler, **INLINE) as sequence:
        drawn = list(sequence)
    assert [len(results) for results in drawn] == [20, 20, 10]
    assert set(numbers(drawn)) == {0, 1, 2, 3, 4}


def test_a_random_sampler_draws_in_another_order_in_every_epoch():
    with array(6).async_reservoir(6, same, 6, reservoir_sampler=SamplerRandom(), **INLINE) as sequence:
        orders = [numbers(sequence) for _ in range(4)]
    assert [sorted(order) for order in orders] == [list(range(6))] * 4
    assert len({tuple(order) for order in orders}) > 1


def test_one_sampler_serves_two_epochs_at_once():
    sampler = SamplerRandom()
    with array(8).async_reservoir(8, same, 8, reservoir_sampler=sampler, **INLINE) as sequence:
        pairs = list(zip(iter(sequence), iter(sequence), strict=True))
    assert sorted(numbers(first for first, _ in pairs)) == list(range(8))


def test_a_sampler_that_needs_a_split_says_so():
    sampler = SamplerClassResampling("x", 10)
    with (
        array().async_reservoir(5, same, reservoir_sampler=sampler, **INLINE) as sequence,
        pytest.raises(TypeError, match="must be a mapping"),
    ):
        next(iter(sequence))


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("maximum", [1, 4, 6, 7])
def test_the_maximum_of_an_epoch_is_exact(maximum, batch_size):
    sampler = SamplerSequential(batch_size)
    with array().async_reservoir(
        7, same, 7, reservoir_sampler=sampler, maximum_number_of_samples_per_epoch=maximum, **INLINE
    ) as sequence:
        for _ in range(3):
            assert len(numbers(sequence)) == maximum
        assert sequence.reservoir_size() == 7


def test_a_draw_is_a_list_of_results():
    with array(2).async_reservoir(2, same, 2, **INLINE) as sequence:
        assert [[result["x"].tolist() for result in drawn] for drawn in sequence] == [[[0]], [[1]]]


def test_a_result_that_is_a_list_counts_once_and_loses_one_level():
    def pair(batch):
        return [{"x": batch["x"]}, {"x": batch["x"] + 100}]

    with array(3).async_reservoir(3, pair, 3, **INLINE) as sequence:
        assert [[result["x"].tolist() for result in drawn] for drawn in sequence] == [
            [[0], [100]],
            [[1], [101]],
            [[2], [102]],
        ]
        assert sequence.reservoir_size() == 3


def test_collate_and_batch_make_batches_of_what_is_drawn(workers):
    with array(6).async_reservoir(6, lambda b: [b, b], 6, **workers) as sequence:
        batch = next(iter(sequence.batch(3)))
        assert batch["x"].tolist() == [x for x in batch["x"].tolist()[::2] for _ in range(2)]
        assert next(iter(sequence.collate()))["x"].shape == (2,)


def test_without_collate_a_draw_is_the_list_as_it_was_drawn():
    with array(2).async_reservoir(2, lambda b: [b], 2, collate_fn=None, **INLINE) as sequence:
        assert [[[b["x"].tolist() for b in result] for result in drawn] for drawn in sequence] == [[[[0]]], [[[1]]]]


def test_stop_iteration_from_collate_is_an_error():
    def stop(drawn):
        raise StopIteration

    with (
        array().async_reservoir(2, same, collate_fn=stop, **INLINE) as sequence,
        pytest.raises(RuntimeError, match="raised StopIteration"),
    ):
        next(iter(sequence))


# What goes wrong


def test_an_empty_source_is_an_error(workers):
    with array(0).async_reservoir(2, lambda b: b, **workers) as sequence, pytest.raises(ValueError, match="empty"):
        next(iter(sequence))


def test_a_source_of_which_everything_is_skipped_is_an_error():
    chain = array(3).map(lambda b: 1 / 0, on_error="skip")
    with chain.async_reservoir(2, same, **THREADS) as sequence, pytest.raises(ValueError, match="empty"):
        next(iter(sequence))


def test_a_failure_is_raised_and_iteration_can_go_on(workers):
    def fails_at_1(batch):
        if batch["x"][0] == 1:
            raise ValueError("bad header")
        return batch

    with array(50).async_reservoir(4, fails_at_1, 4, in_order=True, **workers) as sequence:
        iterator = iter(sequence)
        with pytest.raises(JobError, match="bad header") as caught:
            list(iterator)
        assert caught.value.uid == 1
        assert 1 not in numbers(iterator)


def test_if_every_job_fails_the_epoch_ends_with_an_error(workers):
    with (
        array(4).async_reservoir(3, lambda b: 1 / 0, 2, on_error="skip", **workers) as sequence,
        pytest.raises(ExecutorError, match="a whole pass over its source, failed or gave nothing") as caught,
    ):
        next(iter(sequence))
    assert isinstance(caught.value.__cause__, JobError)


def test_if_every_result_is_empty_the_epoch_ends_with_an_error(workers):
    with (
        array(4).async_reservoir(3, lambda b: [], 2, **workers) as sequence,
        pytest.raises(ExecutorError, match="failed or gave nothing"),
    ):
        next(iter(sequence))


def test_skipped_samples_are_named_once_for_each_epoch(caplog):
    def fails_at_1(batch):
        if batch["x"][0] == 1:
            raise ValueError("bad header")
        return batch

    with array(4).async_reservoir(3, fails_at_1, 3, on_error="skip", **INLINE) as sequence:
        assert numbers(sequence) == [0, 2, 3]
        assert [failure.uid for failure in sequence.failures] == [1]
        assert numbers(sequence) == [2, 3, 0]
        assert sequence.failures == []
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "skipped 1 of 4 jobs" in warnings[0]


def test_more_failures_than_the_limit_are_an_error():
    def odd_fails(batch):
        if batch["x"][0] % 2:
            raise ValueError("odd")
        return batch

    with (
        array(9).async_reservoir(5, odd_fails, 5, on_error="skip", max_failures=2, **INLINE) as sequence,
        pytest.raises(ExecutorError, match="more than max_failures=2"),
    ):
        next(iter(sequence))


def test_an_error_of_the_source_is_raised():
    class Broken(Sequence):
        def __iter__(self):
            yield {"x": np.array([0])}
            raise OSError("disk is gone")

    with Broken().async_reservoir(3, same, 3, **THREADS) as sequence, pytest.raises(OSError, match="disk is gone"):
        next(iter(sequence))


def test_after_close_the_reservoir_is_empty_and_closed():
    sequence = array().async_reservoir(4, same, **THREADS)
    list(sequence)
    sequence.close()
    assert sequence.reservoir_size() == 0
    with pytest.raises(ClosedError):
        iter(sequence)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_reservoir_samples": 0}, ValueError, "max_reservoir_samples must be at least 1"),
        ({"min_reservoir_samples": 0}, ValueError, "min_reservoir_samples must be at least 1"),
        ({"min_reservoir_samples": 6}, ValueError, "must be at most max_reservoir_samples=5, got 6"),
        ({"nb_workers": 0}, ValueError, "nb_workers must be at least 1"),
        ({"maximum_number_of_samples_per_epoch": 0}, ValueError, "must be at least 1, got 0"),
        ({"max_jobs_at_once": -1}, ValueError, "max_jobs_at_once"),
        ({"reservoir_sampler": SamplerRandom}, TypeError, "reservoir_sampler must be a Sampler"),
        ({"function_to_run": 3}, TypeError, "function_to_run must be callable"),
        ({"patience": 3}, TypeError, "unknown arguments"),
        ({"on_error": "return"}, ValueError, "on_error must be 'raise' or 'skip', got 'return'"),
    ],
)
def test_a_wrong_argument_is_named_before_work_starts(arguments, error, message):
    with pytest.raises(error, match=message):
        array().async_reservoir(**{"max_reservoir_samples": 5, "function_to_run": same, **arguments})


# Smaller versions


def test_a_smaller_version_makes_each_sample_once_in_each_epoch():
    calls = []

    def count(batch):
        calls.append(int(batch["x"][0]))
        return batch

    smaller = array().async_reservoir(4, count, 2, **THREADS).subsample_uids([7, 1, 5], "x")
    assert [numbers(smaller) for _ in range(2)] == [[7, 1, 5]] * 2
    assert calls == [7, 1, 5] * 2


def test_a_smaller_version_draws_as_many_at_a_time_as_the_sampler_does():
    chain = array().async_reservoir(4, same, reservoir_sampler=SamplerRandom(batch_size=2), **THREADS)
    smaller = chain.subsample_uids([7, 1, 5], "x")
    assert [[result["x"].tolist() for result in drawn] for drawn in smaller] == [[[7], [1]], [[5]]]


def test_a_smaller_version_gives_results_that_are_lists_as_the_reservoir_does():
    smaller = array().async_reservoir(4, lambda b: [b, b], **THREADS).subsample_uids([7, 1], "x")
    assert [[result["x"].tolist() for result in drawn] for drawn in smaller] == [[[7], [7]], [[1], [1]]]


def test_a_smaller_version_keeps_what_is_done_about_failures():
    def fails_at_1(batch):
        if batch["x"][0] == 1:
            raise ValueError("bad header")
        return batch

    chain = array().async_reservoir(4, fails_at_1, on_error="skip", name="load", **THREADS)
    smaller = chain.subsample_uids([7, 1, 5], "x")
    assert numbers(smaller) == [7, 5]
    assert [(failure.stage, failure.uid) for failure in smaller.failures] == [("load", 1)]
