"""The fault storm: it holds for a while with some seeds, follows from them, and notices broken promises."""

from __future__ import annotations

import os
from itertools import islice

import numpy as np
import pytest

from benchmarks.fault_books import Books, Violation
from benchmarks.fault_jobs import BAD, GOOD, Work, data_of
from benchmarks.fault_plan import ENDINGS, FAULTS, plan
from trw_pipeline.errors import JobError, JobTimeoutError, WorkerLostError
from trw_pipeline.executors.job import Result

DURATION_S = 20
LIMIT_S = 110
"""A storm ends itself, with the stacks of all threads, when a step takes 90 s: this is only for the worst case."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_faults_breaks_no_promise(program, seed):
    running = program(f"""
        import sys
        from benchmarks.fault_storm import main
        sys.exit(main(["--seed", "{seed}", "--duration", "{DURATION_S}", "--verbose"]))
        """)
    result = running.finish(timeout_s=LIMIT_S)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"seed {seed}: ")


# The plan


def test_the_same_seed_gives_the_same_steps(program):
    """In another program, where sets and dicts of strings may have another order."""
    source = "from benchmarks.fault_storm import main; main(['--seed', '5', '--trace', '100'])"
    elsewhere = program(source, environment={"PYTHONHASHSEED": "123"}).finish().stdout
    assert elsewhere.splitlines() == [str(step) for step in islice(plan(5), 100)]


def test_another_seed_gives_other_steps():
    assert list(islice(plan(1), 20)) != list(islice(plan(2), 20))


def test_every_fault_ending_and_kind_of_job_has_its_turn():
    steps = list(islice(plan(0), 2000))
    assert {step.fault for step in steps} == {"open", *FAULTS, *ENDINGS}
    assert {work.kind for step in steps for work in step.works} == {*GOOD, *BAD}


def test_threads_are_never_asked_for_what_would_end_the_program():
    threads, kinds = False, set()
    for step in islice(plan(0), 2000):
        threads = threads if step.config is None else step.config.backend == "thread"
        kinds |= {work.kind for work in step.works} if threads else set()
    assert kinds & {"dies once", "exits", "crashes", "hangs"} == set()
    assert len(kinds) > 3


# What it notices

ARRAY = Work(7, "array", 40_000)


def answer(ticket=0, work=ARRAY, value=None, error=None, attempts=1):
    value = {"serial": work.serial, "data": data_of(work)} if value is None and error is None else value
    return Result(ticket, value, error, None, None, 0.0, 1, attempts)


def books_with(*works, max_retries=0, in_order=True, job_timeout_s=None):
    books = Books(max_retries, in_order, job_timeout_s)
    for ticket, work in enumerate(works):
        books.put(ticket, work, put_at=0.0)
    return books


def test_right_answers_are_none():
    books = books_with(ARRAY, ARRAY)
    assert books.is_waiting(2)
    books.take(answer(0))
    books.take(answer(1))
    assert not books.is_waiting(0)


def test_an_answer_that_comes_twice_is_noticed():
    books = books_with(ARRAY, ARRAY, in_order=False)
    books.take(answer(1))
    with pytest.raises(Violation, match="expected one of the tickets"):
        books.take(answer(1))


def test_an_answer_of_before_a_reset_is_noticed():
    books = books_with(ARRAY)
    books.forget()
    with pytest.raises(Violation, match="expected one of the tickets"):
        books.take(answer(0))


def test_a_job_that_is_gone_is_noticed():
    with pytest.raises(Violation, match="expected 2 jobs in flight"):
        books_with(ARRAY, ARRAY).is_waiting(1)


def test_a_wrong_order_is_noticed_where_order_is_promised():
    books_with(ARRAY, ARRAY, in_order=False).take(answer(1))
    with pytest.raises(Violation, match="expected ticket 0 before 1"):
        books_with(ARRAY, ARRAY).take(answer(1))


@pytest.mark.parametrize("kind", ["array", "parts", "echo", "buffer"])
def test_one_wrong_byte_is_noticed(kind):
    work = Work(7, kind, 40_000)
    value = {"serial": 7, "data": data_of(work)}
    part = value["data"][500] if kind == "parts" else value["data"]
    np.ravel(part).view(np.uint8)[-1] ^= 1
    with pytest.raises(Violation, match="expected the right value"):
        books_with(work).take(answer(0, work, value))


def test_a_failure_of_a_good_job_is_noticed():
    with pytest.raises(Violation, match="expected a value"):
        books_with(ARRAY).take(answer(error=JobError("?", ticket=0)))


def test_a_value_of_a_bad_job_is_noticed():
    work = Work(7, "raises", 0)
    with pytest.raises(Violation, match="expected JobError"):
        books_with(work).take(answer(0, work))


def test_a_lost_worker_that_nobody_killed_is_noticed():
    books = books_with(ARRAY, max_retries=1)
    books.nb_kills = 1
    with pytest.raises(Violation, match="expected a value"):
        books.take(answer(error=WorkerLostError("?", attempts=2), attempts=2))
    books = books_with(ARRAY, max_retries=1)
    books.nb_kills = 2
    books.take(answer(error=WorkerLostError("?", attempts=2), attempts=2))


def test_a_time_out_of_a_job_that_does_not_hang_is_noticed(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 9.0, 9.0))
    with pytest.raises(Violation, match="expected a value"):
        books_with(ARRAY, job_timeout_s=1.0).take(answer(error=JobTimeoutError("?")))


def test_a_time_out_where_others_have_the_cores_is_counted(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    books = books_with(ARRAY, job_timeout_s=1.0)
    books.take(answer(error=JobTimeoutError("?")))
    assert books.nb_late == 1


def test_an_attempt_too_many_is_noticed():
    with pytest.raises(Violation, match="expected at most 2 attempts"):
        books_with(ARRAY, max_retries=1).take(answer(attempts=3))


def test_after_an_interrupt_one_ticket_may_be_unknown_and_one_result_gone():
    books = books_with(ARRAY, ARRAY)
    books.may_miss_one()
    assert books.is_waiting(1)
    books.take(answer(1))
    books.take(answer(2))
    assert not books.is_waiting(0)
