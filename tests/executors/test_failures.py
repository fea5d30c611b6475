"""The record of skipped samples, and its limits."""

from __future__ import annotations

import logging

import pytest

from trw_pipeline.errors import ExecutorError, JobError
from trw_pipeline.executors.failures import NAMED_AT_MOST, FailureLog


def error(number: int) -> JobError:
    message = f"job {number}, sample_uid s{number} failed\n\nTraceback"
    return JobError(message, key=(number,), uid=f"s{number}", stage="load", attempts=1)


def test_raise_raises_the_error_itself():
    with pytest.raises(JobError, match="job 3"):
        FailureLog("raise", None).add(error(3))


def test_a_count_allows_so_many():
    log = FailureLog("skip", 2)
    log.add(error(0))
    log.add(error(1))
    with pytest.raises(ExecutorError, match="max_failures=2"):
        log.add(error(2))


def test_a_count_of_zero_allows_none():
    with pytest.raises(ExecutorError, match="max_failures=0"):
        FailureLog("skip", 0).add(error(0))


@pytest.mark.parametrize(("nb_jobs", "is_over"), [(10, False), (9, True)])
def test_a_share_is_judged_at_the_end(nb_jobs, is_over):
    """Two of ten are 0.2, which is allowed; two of nine are more."""
    log = FailureLog("skip", 0.2)
    log.add(error(0))
    log.add(error(1))
    if not is_over:
        log.finish(nb_jobs)
        return
    with pytest.raises(ExecutorError, match=r"2 of 9 jobs failed, more than max_failures=0\.2"):
        log.finish(nb_jobs)


def test_the_end_names_what_was_skipped_in_one_warning(caplog):
    log = FailureLog("skip", None)
    log.add(error(4))
    log.add(error(7))
    with caplog.at_level(logging.WARNING, logger="trw_pipeline"):
        log.finish(100)
    (record,) = caplog.records
    assert "skipped 2 of 100 jobs" in record.getMessage()
    assert "s4" in record.getMessage()
    assert "s7" in record.getMessage()


def test_an_epoch_without_failures_says_nothing(caplog):
    with caplog.at_level(logging.DEBUG):
        FailureLog("skip", 0.0).finish(100)
    assert caplog.records == []


def test_a_message_names_the_first_few_and_counts_the_rest():
    log = FailureLog("skip", NAMED_AT_MOST + 4)
    for number in range(NAMED_AT_MOST + 4):
        log.add(error(number))
    with pytest.raises(ExecutorError, match="and 5 more") as caught:
        log.add(error(99))
    assert f"s{NAMED_AT_MOST - 1}" in str(caught.value)
    assert "s99" not in str(caught.value)


def test_a_failure_in_words_is_the_first_line_of_its_error():
    log = FailureLog("skip", None)
    log.add(error(4))
    assert str(log.failures[0]) == "job 4, sample_uid s4 failed"
