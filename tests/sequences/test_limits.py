"""What limits a chain is named: on chains made so that it is known, and by hand-made figures."""

from __future__ import annotations

import time

import numpy as np
import pytest

from trw_pipeline.executors.cores import Cores
from trw_pipeline.executors.figures import as_dict
from trw_pipeline.sequences import limits
from trw_pipeline.sequences.limits import CONSUMER, limit_of
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

# Sleeping jobs take as long on any machine; nothing else here takes long.
NAP_S = 0.02


def array(nb=30):
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential())


def nap(batch):
    time.sleep(NAP_S)
    return batch


def same(batch):
    return batch


def sentence(chain, away_s=0.0, epochs=1):
    with chain:
        for _ in range(epochs):
            for _ in chain:
                if away_s:
                    time.sleep(away_s)
        return chain.report().splitlines()[0]


# Real chains


@pytest.mark.slow
def test_workers_that_are_busy_all_the_time_limit(monkeypatch):
    monkeypatch.setattr(limits, "cores", lambda: Cores(8, None))
    loaded = array().map(nap, nb_workers=2, backend="thread", name="load")
    text = sentence(loaded.map(same, nb_workers=2, backend="thread").batch(2, collate_fn=None))
    assert text.startswith("'1:load' limits: its workers are busy nearly all the time, and the consumer waits")
    assert "Give it more (nb_workers)" in text


@pytest.mark.slow
def test_as_many_workers_as_cores_are_not_told_to_be_more(monkeypatch):
    monkeypatch.setattr(limits, "cores", lambda: Cores(2, None))
    text = sentence(array().map(nap, nb_workers=2, backend="thread", name="load"))
    assert text.startswith("'1:load' limits: its workers are busy")
    assert "There are as many as cores" in text


@pytest.mark.slow
def test_a_slow_consumer_is_told_that_it_is_the_limit():
    text = sentence(array(15).map(same, nb_workers=2, backend="thread").batch(1), away_s=NAP_S)
    assert text.startswith("The consumer limits")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chain"),
    [
        ("0:SequenceArray", lambda: SequenceArray({"x": np.arange(20)}, transforms=nap).map(same, 2, backend="thread")),
        ("1:nap", lambda: array(20).map(nap).batch(2, collate_fn=None)),
        ("1:collate", lambda: array(20).collate(lambda batch, device: nap(batch)).map(same, 2, backend="thread")),
        ("1:same", lambda: array(20).map(same, 2, backend="thread", preprocess_fn=lambda batch, source: nap(batch))),
        ("0:Numbers", lambda: Numbers().map(same)),
    ],
)
def test_what_takes_long_in_the_main_process_limits(name, chain):
    text = sentence(chain())
    assert text.startswith(f"{name!r} limits")
    assert "in the main process" in text


class Numbers(Sequence):
    def __iter__(self):
        for i in range(20):
            time.sleep(NAP_S)
            yield {"x": np.array([i])}


@pytest.mark.slow
def test_too_few_jobs_at_once_limit():
    text = sentence(array().map(nap, nb_workers=4, backend="thread", max_jobs_at_once=1, name="load"))
    assert text.startswith("'1:load' limits: max_jobs_at_once=1 lets 1 of its 4 workers work. Make it 8 or more")


@pytest.mark.slow
def test_one_job_that_does_not_come_back_is_named(tmp_path):
    gate = tmp_path / "open"

    def stuck(batch):
        while batch["x"][0] == 20 and not gate.exists():
            time.sleep(0.01)
        return batch

    with array(24).map(stuck, nb_workers=2, backend="thread", max_jobs_at_once=24) as chain:
        epoch = iter(chain)
        for _ in range(20):
            next(epoch)
        time.sleep(limits.FROZEN_S + 0.1)
        text = chain.report()
        gate.touch()
        list(epoch)
    assert text.startswith("A job of '1:stuck' limits: it has run for 1 s")
    assert "sample_uid 20 for 1." in text


@pytest.mark.slow
def test_a_reservoir_that_serves_again_what_it_has_says_so():
    chain = array().async_reservoir(10, nap, 10, nb_workers=1, backend="thread", name="load").collate()
    text = sentence(chain, away_s=0.002, epochs=4)
    assert text.startswith("The consumer never waits, because '1:load' serves its results again, each about ")


def test_before_the_first_item_nothing_is_said():
    assert array().map(same).report().splitlines()[0] == "No item has come yet."


# Figures made by hand


def stage(**figures):
    nothing = {**as_dict([]), "main_s": 0.0, "load": 0.0, "epoch_items": 100, "epoch_jobs": 100}
    return {**nothing, **figures}


def consumer(away_s, blocked_s, main_s):
    return stage(items=100, busy_s=away_s, blocked_s=blocked_s, wait_s=blocked_s + main_s)


def test_jobs_of_very_different_length_hold_up_the_others():
    figures = {"1:load": stage(workers=4, capacity=8, load=0.4, job_s_p50=0.01, job_s_p95=0.2)}
    text = limit_of({**figures, CONSUMER: consumer(1.0, 8.0, 1.0)})
    assert text.startswith("'1:load' limits, though its workers are often idle: a few of its jobs take much longer")
    assert "in_order=False" in text


def test_of_two_stages_that_which_is_busier_is_named(monkeypatch):
    monkeypatch.setattr(limits, "cores", lambda: Cores(8, None))
    figures = {"1:load": stage(workers=2, load=0.8), "2:augment": stage(workers=2, load=0.95)}
    assert limit_of({**figures, CONSUMER: consumer(1.0, 8.0, 1.0)}).startswith("'2:augment' limits: its workers")


@pytest.mark.parametrize(
    ("away_s", "blocked_s", "main_s", "who"),
    [(5.0, 3.0, 2.0, "The consumer"), (3.0, 5.0, 2.0, "'1:load'"), (2.0, 3.0, 5.0, "'0:source'")],
)
def test_the_greatest_part_of_the_time_decides(away_s, blocked_s, main_s, who):
    figures = {"0:source": stage(main_s=main_s), "1:load": stage(workers=2, load=0.9)}
    assert limit_of({**figures, CONSUMER: consumer(away_s, blocked_s, main_s)}).startswith(f"{who} limits")


@pytest.mark.parametrize(
    ("blocked_s", "main_s", "said"),
    [
        (0.2, 0.2, "A faster chain would change nothing"),
        (0.0, 4.0, "40 % of the time it waits, mostly for the main process, in which '0:source' works most"),
        (3.0, 1.0, "40 % of the time it waits, mostly for workers"),
    ],
)
def test_a_consumer_that_limits_may_wait_all_the_same(blocked_s, main_s, said):
    figures = {"0:source": stage(main_s=main_s), "1:load": stage(workers=2, load=0.9)}
    assert said in limit_of({**figures, CONSUMER: consumer(10.0 - blocked_s - main_s, blocked_s, main_s)})


def test_a_job_no_slower_than_others_is_not_called_frozen():
    figures = {"1:load": stage(workers=2, load=0.9, oldest_job_s=30.0, job_s_p50=20.0)}
    assert limit_of({**figures, CONSUMER: consumer(0.0, 9.0, 0.0)}).startswith("'1:load' limits: its workers")
