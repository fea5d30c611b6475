"""Where the time of an epoch goes is measured, on a part of the items, and costs next to nothing."""

from __future__ import annotations

import gc
import logging
import time
import weakref

import numpy as np
import pytest

from trw_pipeline.executors import waiting
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import Sequence, SequenceArray

NAP_S = 0.01
THREADS = {"nb_workers": 2, "backend": "thread"}


def array(nb=12, **options):
    return SequenceArray({"x": np.arange(nb)}, SamplerSequential(), **options)


def nap(batch):
    time.sleep(NAP_S)
    return batch


def items_of(chain):
    return [figures["epoch_items"] for figures in chain.statistics().values()]


# Counts


def test_items_are_counted_at_every_stage():
    chain = array(12).map(lambda batch: [batch, batch]).batch(5, collate_fn=None).collate(lambda items, device: items)
    list(chain)
    assert items_of(chain) == [12, 24, 5, 5, 5]


def test_failed_samples_and_empty_lists_are_no_items():
    def some(batch):
        x = batch["x"][0]
        return 1 // x and batch if x < 2 else [batch] * int(x % 3)

    with array(9).map(some, on_error="skip", **THREADS) as chain:
        nb = len(list(chain))
        assert nb == 1 + sum(x % 3 for x in range(2, 9))
        assert items_of(chain) == [9, nb, nb]


def test_counts_are_of_the_newest_epoch_and_of_this_very_sequence():
    source = array(4)
    chain = source.batch(2, collate_fn=None)
    for _ in range(3):
        list(chain)
    assert items_of(chain) == [4, 2, 2]
    assert items_of(source) == [0, 0]


def test_below_a_reservoir_stages_are_watched_too():
    with array(6).map(nap).async_reservoir(6, nap, 6, backend="inline").collate() as chain:
        list(chain)
        figures = chain.statistics()
    assert figures["0:SequenceArray"]["epoch_items"] > 0
    assert figures["consumer"]["first_item_s"] >= 12 * NAP_S


# Times


@pytest.mark.slow
def test_time_in_the_main_process_is_that_of_the_stage_that_took_it():
    chain = array(21, transforms=nap).map(lambda batch: batch).batch(1, collate_fn=None)
    list(chain)
    figures = chain.statistics()
    main_s = [one["main_s"] for one in figures.values()]
    assert 0.9 * 20 * NAP_S <= main_s[0] <= figures["consumer"]["wait_s"]
    assert max(main_s[1:]) < 0.5 * main_s[0]
    assert figures["consumer"]["wait_share"] > 0.6


@pytest.mark.slow
def test_the_consumer_waits_or_is_away_and_both_are_all_of_the_time():
    with array(21).map(nap, nb_workers=1, backend="thread", name="load") as chain:
        epoch, start = iter(chain), time.perf_counter()
        for _ in epoch:
            time.sleep(2 * NAP_S)
        took_s = time.perf_counter() - start
        figures = chain.statistics()["consumer"]
    assert figures["busy_s"] >= 0.8 * 20 * 2 * NAP_S
    assert figures["wait_share"] < 0.5
    all_s = figures["first_item_s"] + figures["busy_s"] + figures["wait_s"]
    assert 0.9 * took_s <= all_s <= 1.01 * took_s


@pytest.mark.slow
def test_the_load_of_workers_is_the_share_of_the_time_that_they_were_in_jobs():
    with array(40).map(nap, **THREADS, name="load").map(lambda b: b, **THREADS, name="rest") as chain:
        list(chain)
        figures = chain.statistics()
    assert figures["1:load"]["load"] > 0.6
    assert figures["2:rest"]["load"] < 0.4
    assert figures["consumer"]["blocked_s"] > 0.5 * figures["consumer"]["wait_s"]


class Uneven(Sequence):
    """Every fourth item takes a millisecond, the others nothing."""

    def __iter__(self):
        for i in range(2000):
            if i % 4 == 3:
                time.sleep(0.001)
            yield {"x": i}


@pytest.mark.slow
def test_what_is_estimated_from_a_part_of_the_items_is_true_of_all():
    chain = Uneven().collate(lambda item, device: item)
    list(chain)
    figures = chain.statistics()
    assert chain._watch._nb_watched < 2000 / 4  # else this shows nothing
    elapsed_s = figures["consumer"]["wait_s"] + figures["consumer"]["busy_s"]
    assert 0.6 < figures["0:Uneven"]["main_s"] / elapsed_s <= 1.0


# What it costs


@pytest.mark.slow
def test_of_tiny_items_few_are_watched_and_of_slow_ones_all():
    tiny, slow = array(20000), array(6, transforms=lambda batch: time.sleep(0.05) or batch)
    for chain in (tiny, slow):
        list(chain)
    assert tiny._watch._nb_watched < 20000 / 20
    assert slow._watch._nb_watched >= 5


def test_engines_are_left_as_they_were():
    def fails(batch):
        raise KeyError("x")

    chain = array(3).map(lambda batch: batch).batch(3, collate_fn=fails)
    epoch = iter(chain)
    with pytest.raises(KeyError):
        next(epoch)
    engines = [epoch, *epoch.sources, *epoch.sources[0].sources]
    assert len(engines) == 3
    assert not any({"advance", "advance_into"} & set(vars(engine)) for engine in engines)


def test_no_item_outlives_the_look_at_it():
    chain = array(3, transforms=lambda batch: {"x": np.zeros(1000) + batch["x"]}).map(lambda batch: batch)
    epoch = iter(chain)
    item = weakref.ref(next(epoch)["x"])
    gc.collect()
    assert item() is None


def test_an_epoch_does_not_keep_its_recipe():
    chain = array(3).batch(1, collate_fn=None)
    recipe, epoch = weakref.ref(chain), iter(chain)
    next(epoch)
    del chain
    assert recipe() is None
    assert len(list(epoch)) == 2


# The log record of a stall


@pytest.fixture
def told(caplog):
    """Returns the texts of the records so far."""
    caplog.set_level(logging.INFO, waiting.__name__)
    return lambda: [record.getMessage() for record in caplog.records if record.name == waiting.__name__]


def test_a_stall_is_told_once_with_every_stage_of_the_chain(tmp_path, told):
    gate = tmp_path / "open"

    class Opens(logging.Handler):
        def emit(self, record):
            gate.touch()

    def stuck(batch):
        while batch["x"][0] == 3 and not gate.exists():
            time.sleep(0.002)
        return batch

    handler = Opens()
    logging.getLogger(waiting.__name__).addHandler(handler)
    try:
        stages = array(6).map(stuck, **THREADS, name="load", stall_s=0.2)
        with stages.map(lambda batch: batch, **THREADS, name="augment", stall_s=0.2).batch(2, collate_fn=None) as chain:
            assert len(list(chain)) == 3
    finally:
        logging.getLogger(waiting.__name__).removeHandler(handler)
    (text,) = told()
    first, _, *lines = text.splitlines()
    assert first == "nothing came for 0.2 s; what runs where:"
    names = ["0:SequenceArray", "1:load", "2:augment", "3:batch", "consumer"]
    assert [name for name in names if any(line.startswith(name) for line in lines)] == names
    assert any(line.startswith("'load': ") and "2 of 2 workers alive" in line for line in lines)
    assert "sample_uid 3 for 0." in text


def test_another_stage_does_not_tell_again_within_the_minute():
    class Executor:
        def __init__(self):
            self.stall_watch = waiting.StallWatch(0.001)

    executors = [Executor(), Executor()]
    for executor in executors:
        executor.stall_watch.begin()
    time.sleep(0.002)
    executors[0].stall_watch.look(executors, lambda: "a report")
    executors[1].stall_watch.begin()
    assert 59 < executors[1].stall_watch.left_s(None) <= 60
