"""`cache` saves work and changes nothing else: no order, no number, no sample, and never a stale one."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch

from trw_pipeline.executors.compression import Compression
from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that workers need not import this file
NB = 10
THREADS = {"nb_workers": 2, "backend": "thread"}
WORKERS = [{}, THREADS, pytest.param({"nb_workers": 2}, marks=pytest.mark.slow)]


@pytest.fixture
def opened():
    """Closes the chains that are handed to it when the test ends."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


@pytest.fixture
def calls(tmp_path):
    """A file with a line for each call, whichever process made it; cleared when it is read."""

    class Calls:
        path = tmp_path / "calls"

        def taken(self):
            found = sorted(map(int, self.path.read_text().split())) if self.path.exists() else []
            self.path.unlink(missing_ok=True)
            return found

    return Calls()


class Load:
    """Notes its calls in a file, so that its own state stays as it is."""

    def __init__(self, path, by=10):
        self.path = str(path)
        self.by = by

    def __call__(self, batch):
        number = int(batch["x"][0])
        with Path(self.path).open("a") as file:
            file.write(f"{number}\n")
        return {"x": batch["x"], "volume": np.full((1, 3000), self.by * number), "sample_uid": batch["sample_uid"]}


def array(nb=NB, sampler=None, seed=5):
    sampler = SamplerRandom() if sampler is None else sampler
    return SequenceArray({"x": np.arange(nb)}, sampler).with_seed(seed)


def plain(items):
    return [(int(item["x"][0]), int(item["volume"][0, 7])) for item in items]


def noisy(batch, rng):
    return {**batch, "volume": batch["volume"] + rng.integers(1000)}


# What it saves


@pytest.mark.parametrize("options", [{}, {"compression": "lz4"}, {"compression": Compression("zstd", shuffle=None)}])
@pytest.mark.parametrize("workers", WORKERS)
def test_each_sample_is_made_once_and_comes_in_the_order_of_each_epoch(workers, options, calls, opened):
    cached = opened(array().map(Load(calls.path), **workers).cache(**options))
    expected = [[(x, 10 * x) for x in [int(b["x"][0]) for b in array()]]]
    orders = [plain(cached) for _ in range(3)]
    assert calls.taken() == list(range(NB))
    assert orders[0] == expected[0]
    assert len(set(map(tuple, orders))) == 3
    assert all(sorted(order) == [(x, 10 * x) for x in range(NB)] for order in orders)


@pytest.mark.parametrize("workers", WORKERS)
def test_the_stages_above_draw_what_they_draw_without_it(workers, calls, opened):
    load = Load(calls.path)
    cached = opened(array().map(load, **workers).cache().map(noisy, **workers).shuffle(4))
    without = opened(array().map(load).map(noisy).shuffle(4))
    for _ in range(2):
        assert plain(cached) == plain(without)


def test_lists_are_kept_whole(opened):
    def several(batch):
        return [{"x": batch["x"] * 10 + i} for i in range(int(batch["x"][0]) % 3)]

    cached = opened(array().map(several, **THREADS).cache())
    without = array().map(several)
    for _ in range(2):
        assert [int(i["x"][0]) for i in cached] == [int(i["x"][0]) for i in without]
    assert cached.statistics()["1:several"]["served"] == NB


def test_an_epoch_that_is_given_up_keeps_what_was_made(calls, opened):
    cached = opened(array(sampler=SamplerSequential()).map(Load(calls.path)).cache())
    iterator = iter(cached)
    for _ in range(4):
        next(iterator)
    made = calls.taken()
    assert made[:4] == [0, 1, 2, 3]
    list(cached)
    assert made + calls.taken() == list(range(NB))


def test_what_is_known_waits_for_no_job_where_the_order_is_free(tmp_path, opened):
    gate, second = threading.Lock(), tmp_path / "second"

    def waits_at_3(batch):
        if batch["x"][0] == 3:
            if not second.exists():
                raise ValueError("not kept")
            with gate:
                pass
        return {"x": batch["x"]}

    source = SequenceArray({"x": np.array([3, 0, 1, 2])}, SamplerSequential())
    options = {"in_order": False, "max_jobs_at_once": 4, "on_error": "skip", **THREADS}
    cached = opened(source.map(waits_at_3, **options).cache())
    assert sorted(int(item["x"][0]) for item in cached) == [0, 1, 2]
    second.touch()
    with gate:
        iterator = iter(cached)
        assert [int(next(iterator)["x"][0]) for _ in range(3)] == [0, 1, 2]
    assert [int(item["x"][0]) for item in iterator] == [3]


def test_figures_tell_what_is_kept_and_served(calls, opened):
    cached = opened(array().map(Load(calls.path), **THREADS).cache())
    list(cached), list(cached)
    figures = cached.statistics()["1:Load"]
    assert (figures["kept"], figures["served"], figures["jobs_done"]) == (NB, NB, NB)
    assert figures["kept_bytes"] > NB * 3000 * 8
    cached.close()
    assert cached.statistics()["1:Load"]["kept_bytes"] == 0


def test_compression_keeps_less(calls, opened):
    sizes = []
    for compression in (None, "lz4", "auto"):
        cached = opened(array().map(Load(calls.path)).cache(compression=compression))
        list(cached)
        sizes.append(cached.statistics()["1:Load"]["kept_bytes"])
    assert max(sizes[1:]) < sizes[0] / 10


# What does not fit


def test_what_does_not_fit_is_made_again_in_each_epoch(calls, opened, caplog):
    caplog.set_level(logging.INFO)
    one = 3000 * 8 + 1000
    cached = opened(array(sampler=SamplerSequential()).map(Load(calls.path)).cache(max_bytes=4 * one))
    assert plain(cached) == [(x, 10 * x) for x in range(NB)]
    assert calls.taken() == list(range(NB))
    for _ in range(2):
        assert plain(cached) == [(x, 10 * x) for x in range(NB)]
        assert calls.taken() == [4, 5, 6, 7, 8, 9]
    assert cached.statistics()["1:Load"]["kept_bytes"] <= 4 * one
    assert [record.message for record in caplog.records if "is full: 4 results" in record.message]


def test_failed_samples_are_not_kept(calls, opened):
    load = Load(calls.path)

    def odd_fails(batch):
        load(batch)
        if batch["x"][0] % 2:
            raise ValueError("odd")
        return {"x": batch["x"]}

    cached = opened(array().map(odd_fails, on_error="skip").cache())
    for expected in (range(NB), range(1, NB, 2)):
        assert sorted(int(i["x"][0]) for i in cached) == [0, 2, 4, 6, 8]
        assert calls.taken() == list(expected)
        assert len(cached.failures) == 5


def test_what_can_not_be_pickled_is_made_again_with_a_warning(opened, caplog):
    cached = opened(array(2).map(lambda batch: {"x": batch["x"], "lock": threading.Lock()}, **THREADS).cache())
    for _ in range(2):
        assert len(list(cached)) == 2
    assert "can not be cached: result['lock'] can not be pickled" in caplog.text


# Copies


@pytest.mark.parametrize("workers", [{}, THREADS])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_whoever_gets_a_sample_may_write_to_it(workers, compression, opened):
    def load(batch):
        x = batch["x"]
        tensor = torch.arange(5000).reshape(1, -1)
        return {"x": x, "small": np.ones(3), "large": np.ones((1, 9000)), "tensor": tensor, "list": [{"a": [1, 2]}]}

    cached = opened(array(3).map(load, **workers).cache(compression=compression))
    for _ in range(3):
        for item in cached:
            assert item["small"].sum() == 3
            assert item["large"].sum() == 9000
            assert int(item["tensor"].sum()) == 4999 * 2500
            assert item["list"] == [{"a": [1, 2]}]
            item["small"][:], item["large"][:] = 7, 7
            item["tensor"] += 1
            item["list"][0]["a"].append(3)
            item["new"] = 1


# Never stale


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", [None, "cache"])
def test_an_attribute_changed_between_two_epochs_has_effect_in_the_next(workers, name, calls, tmp_path, opened, caplog):
    load = Load(calls.path)
    cached = opened(array().map(load, **workers).cache(folder=name and tmp_path / name))
    list(cached)
    load.by = 7
    for _ in range(2):
        assert sorted(plain(cached)) == [(x, 7 * x) for x in range(NB)]
    assert calls.taken() == sorted([*range(NB), *range(NB)])
    assert "Load has changed: its 10 cached results are not served" in caplog.text
    load.by = 10
    assert sorted(plain(cached)) == [(x, 10 * x) for x in range(NB)]
    assert calls.taken() == ([] if name else list(range(NB)))  # in files those of both are kept


def test_an_old_epoch_that_goes_on_leaves_no_result_to_a_newer_one(calls, opened):
    load = Load(calls.path)
    cached = opened(array(sampler=SamplerSequential()).map(load, nb_workers=1).cache())
    old = iter(cached)
    next(old)
    load.by = 7
    new = iter(cached)
    next(new)
    list(old)  # made by the function of before
    assert [volume for _, volume in plain(new)] == [7 * x for x in range(1, NB)]
    assert plain(cached) == [(x, 7 * x) for x in range(NB)]


def test_a_changed_split_is_another_one(calls, tmp_path, opened):
    """Both have the same uids, and share a folder."""
    load = Load(calls.path)
    for first in (0, 100):
        split = {"x": np.arange(first, first + 4)}
        cached = opened(SequenceArray(split, SamplerSequential()).map(load).cache(folder=tmp_path / "cache"))
        assert plain(cached) == [(x, 10 * x) for x in range(first, first + 4)]


def test_what_preprocess_makes_of_an_item_counts_and_collate_is_called_for_each(opened):
    shift, collated = [0], []

    def collate(item, source):
        collated.append(1)
        return {**item, "y": item["x"] + 1}

    cached = opened(
        array(3)
        .map(
            lambda batch: {"x": batch["x"] * 10},
            preprocess_fn=lambda item, source: {"x": item["x"] + shift[0]},
            collate_fn=collate,
        )
        .cache()
    )
    for number in (0, 5):
        shift[0] = number
        for _ in range(2):
            found = sorted((int(i["x"][0]), int(i["y"][0])) for i in cached)
            assert found == [(10 * (x + number), 10 * (x + number) + 1) for x in range(3)]
    assert len(collated) == 12
    assert cached.statistics()["1:<lambda>"]["served"] == 6


# Arguments


def with_rng(batch, rng):
    return batch


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: array().cache(), TypeError, "right behind one.*got SequenceArray"),
        (lambda: array().map(len).batch(2).cache(), TypeError, "got SequenceBatch"),
        (lambda: array().map([len, with_rng]).cache(), ValueError, "len > with_rng takes rng.*Cache first"),
        (lambda: array().map(len, 1, None, lambda r, **channels: r).cache(), ValueError, "called for each job"),
        (lambda: array().map(len).cache(max_bytes=0), ValueError, "max_bytes must be at least 1"),
        (lambda: array().map(len).cache(max_bytes=1e9), TypeError, "max_bytes must be an int"),
        (lambda: array().map(len).cache(compression="zip"), ValueError, "compression must be"),
    ],
)
def test_arguments_are_checked_before_anything_is_done(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_smaller_version_and_one_of_another_seed_have_a_cache_of_their_own(calls, opened):
    cached = opened(array().map(Load(calls.path), **THREADS).cache())
    smaller, other = opened(cached.subsample(3)), opened(cached.with_seed(9))
    for _ in range(2):
        list(smaller)
    assert len(calls.taken()) == 3
    for _ in range(2):
        list(other)
    assert calls.taken() == list(range(NB))
    assert cached.statistics()["1:Load"]["kept"] == 0


def test_it_is_shown_in_the_chain():
    assert repr(array().map(len).cache()).splitlines()[1] == "  .map(len, inline).cache(memory)"
    assert repr(array().map(len).cache(folder="runs/cache")).splitlines()[1] == "  .map(len, inline).cache(runs/cache)"
