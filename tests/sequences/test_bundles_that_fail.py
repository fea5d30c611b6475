"""Short items travel together, and fail alone."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading

import numpy as np
import psutil
import pytest
from toy_bundles import array, drawn, numbers, raises_at

from trw_pipeline.errors import CodecError, JobError, WorkerLostError
from trw_pipeline.executors import zmq_pool


@pytest.mark.parametrize("error", [ValueError("bad sample"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_the_item_that_fails_is_named_and_the_others_arrive(bundles, error):
    chain = array(sample_uid=np.arange(23) * 100).map(raises_at(12, error), nb_workers=2, on_error="skip", name="read")
    with chain:
        assert numbers(chain) == [i for i in range(23) if i != 12]
        (failure,) = chain.failures
    assert (failure.key, failure.uid, failure.stage) == ((12,), 1200, "read")
    assert type(error).__name__ in str(failure.error)
    assert len(bundles) == 5


def test_the_error_is_raised_in_its_turn_with_its_cause(bundles):
    with array().map(raises_at(12, ValueError("bad sample")), nb_workers=2) as chain:
        items = iter(chain)
        assert numbers(next(items) for _ in range(12)) == list(range(12))
        with pytest.raises(JobError, match=r"item \(12,\).*bad sample") as caught:
            next(items)
        assert isinstance(caught.value.__cause__, ValueError)
        assert "raise error" in str(caught.value)
        assert numbers(items) == list(range(13, 23))
    assert bundles


def test_a_result_that_can_not_travel_is_the_error_of_its_item(bundles):
    def lock(batch):
        import threading

        return threading.Lock() if batch["x"][0] == 7 else batch

    with array().map(lock, nb_workers=2, on_error="skip") as chain:
        assert numbers(chain) == [i for i in range(23) if i != 7]
        (failure,) = chain.failures
    assert isinstance(failure.error, CodecError)
    assert failure.key == (7,)


class _Spoilt:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise RuntimeError("not here")


def test_a_result_that_can_not_be_made_again_is_the_error_of_its_item(bundles):
    with array().map(lambda batch: _Spoilt() if batch["x"][0] == 7 else batch, nb_workers=2, on_error="skip") as chain:
        assert numbers(chain) == [i for i in range(23) if i != 7]
        (failure,) = chain.failures
    assert isinstance(failure.error, CodecError)
    assert "not here" in str(failure.error)


def killer(folder, victim, times):
    """Kills its worker at the item `victim` so many times; each item leaves a note of each time that it runs."""

    def function(batch):
        number = int(batch["x"][0])
        with open(folder / f"{number}", "a") as file:
            file.write(".")
        if number == victim and (folder / f"{number}").stat().st_size <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    return function


@pytest.mark.slow
def test_an_item_that_kills_its_worker_once_is_tried_again_and_all_come_in_order(bundles, tmp_path):
    with array().map(killer(tmp_path, 12, times=1), nb_workers=2) as chain:
        assert numbers(chain) == list(range(23))
        assert chain.failures == []
    assert (tmp_path / "12").stat().st_size == 2


@pytest.mark.slow
@pytest.mark.parametrize("max_retries", [0, 1, 2])
def test_an_item_that_kills_every_worker_is_lost_alone_after_as_many_tries_as_asked_for(bundles, tmp_path, max_retries):
    chain = array().map(killer(tmp_path, 12, times=99), nb_workers=2, on_error="skip", max_retries=max_retries)
    with chain:
        assert numbers(chain) == [i for i in range(23) if i != 12]
        (failure,) = chain.failures
    assert isinstance(failure.error, WorkerLostError)
    assert (failure.key, failure.error.attempts) == ((12,), max_retries + 1)
    assert (tmp_path / "12").stat().st_size == max_retries + 1
    assert bool(bundles) == (max_retries > 0)


@pytest.mark.slow
def test_out_of_order_an_item_that_kills_its_worker_takes_no_other_with_it(bundles, tmp_path):
    with array().map(killer(tmp_path, 12, times=1), nb_workers=2, in_order=False) as chain:
        assert sorted(numbers(chain)) == list(range(23))


@pytest.mark.slow
@pytest.mark.parametrize("in_order", [True, False])
def test_workers_that_are_killed_and_stopped_at_random_lose_nothing(bundles, in_order, monkeypatch):
    """Each epoch has every item once, in order if that was asked for."""
    monkeypatch.setattr(zmq_pool, "MAX_STARTS_IN_VAIN", 1000)  # some are killed before they are ready
    moments, over = random.Random(4), threading.Event()

    def disturb():
        while not over.wait(moments.uniform(0, 0.2)):
            for worker in moments.sample(psutil.Process().children(recursive=True), 1):
                with contextlib.suppress(psutil.Error):
                    if worker.name().startswith("trw"):
                        worker.send_signal(moments.choice([signal.SIGKILL, signal.SIGSTOP]))
                        over.wait(moments.uniform(0, 0.2))
                        worker.send_signal(signal.SIGCONT)

    chain = array(2000).map(drawn, nb_workers=3, in_order=in_order, max_retries=1000)
    with chain, array(2000).map(drawn, nb_workers=0) as undisturbed:
        expected = [(numbers([item]), item["draws"].tolist()) for _ in range(2) for item in undisturbed]
        assert numbers(next(iter(chain)) for _ in range(3))  # the workers are there
        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            chain.set_epoch(0)
            epochs = [[(numbers([item]), item["draws"].tolist()) for item in chain] for _ in range(2)]
        finally:
            over.set()
            thread.join()
        assert chain.statistics()["1:drawn"]["jobs_lost"] > 0
    found = [one for epoch in epochs for one in (epoch if in_order else sorted(epoch))]
    assert found == expected
    assert len(bundles) >= 800


def test_an_interrupt_while_items_are_gathered_loses_none(bundles):
    came, found = [], []

    def interrupted_once(batch):
        if batch["x"][0] == 12 and not came:
            came.append(1)
            raise KeyboardInterrupt
        return batch

    with array().map(interrupted_once, nb_workers=0).map(lambda batch: batch, nb_workers=2) as chain:
        items = iter(chain)
        while len(found) < 23:
            try:
                found += numbers([next(items)])
            except KeyboardInterrupt:
                came.append(2)
    assert came == [1, 2]
    assert found == list(range(23))
