"""Short items travel together: nothing but the speed may tell."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_bundles import array, drawn, numbers, raises_at

from trw_pipeline.executors.bundle import (
    BUNDLE_S,
    LEAST_ITEMS,
    MEASURE_EVERY,
    MOST_ITEMS,
    BundleMaker,
    BundleSize,
)
from trw_pipeline.executors.codec import OUT_OF_BAND_BYTES
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.executors.pickle_codec import PickleCodec
from trw_pipeline.seeding import JobSeeds
from trw_pipeline.sequences.samplers import SamplerRandom, SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

# Each item for itself


def test_each_item_has_the_seed_that_it_has_alone(bundles):
    def epochs(nb_workers):
        with array(sampler=SamplerRandom()).map(drawn, nb_workers=nb_workers) as chain:
            return [[(numbers([item]), item["draws"].tolist()) for item in chain] for _ in range(2)]

    alone = epochs(0)
    assert epochs(2) == alone
    assert bundles == [5, 5, 5, 5, 3] * 2
    assert len({str(draws) for epoch in alone for _, draws in epoch}) == 46


def test_what_an_item_logs_names_that_item(bundles, caplog):
    def log(batch):
        import logging

        if batch["x"][0] % 3 == 1:
            logging.getLogger("users.module").warning("odd")
        return batch

    source = SequenceArray({"x": np.arange(10), "sample_uid": np.arange(100, 110)}, SamplerSequential())
    with source.map(log, nb_workers=1) as chain:
        list(chain)
    assert bundles == [5, 5]
    named = [(record.sample_key, record.sample_uid) for record in caplog.records if record.name == "users.module"]
    assert named == [((i,), 100 + i) for i in (1, 4, 7)]


@pytest.mark.parametrize("kind", ["array", "tensor", "number", "text", "tuple", "object", "large", "mixed"])
def test_results_of_any_kind_are_what_they_are_alone(bundles, kind):
    def made(batch):
        x = int(batch["x"][0])
        kinds = {
            "array": {"x": np.full((1, 2), x, np.float32), "empty": np.zeros((1, 0)), "flag": True},
            "tensor": {"x": torch.full((1, 3), x, dtype=torch.bfloat16 if x == 3 else torch.int16)},
            "number": x,
            "text": f"{x}",
            "tuple": (x, np.arange(x)),
            "object": {"x": {"nested": [x, None]}},
            "large": {"x": np.full(5000, x, np.float64)},
        }
        return kinds[kind] if kind != "mixed" else list(kinds.values())[x % len(kinds)]

    def epoch(nb_workers):
        with array().map(made, nb_workers=nb_workers) as chain:
            return [repr(item) for item in chain]

    assert epoch(2) == epoch(0)
    assert bundles == [5, 5, 5, 5, 3]


def test_results_are_writable_and_each_has_memory_of_its_own(bundles):
    with array().map(lambda batch: {"x": batch["x"] + 1, "y": torch.tensor([1.0])}, nb_workers=2) as chain:
        items = list(chain)
    for item in items:
        item["x"] *= 100
        item["y"] += 1
    assert numbers(items) == [100 * i for i in range(1, 24)]
    assert {float(item["y"]) for item in items} == {2.0}
    assert len(bundles) == 5


@pytest.mark.parametrize("kind", [np.zeros, torch.zeros, lambda nb: [np.zeros(nb)]])
def test_a_function_that_fills_the_same_buffer_again_gives_what_it_gave(bundles, kind):
    buffer = kind(1)

    def filled(batch):
        target = buffer[0] if isinstance(buffer, list) else buffer
        target[:] = int(batch["x"][0])
        return {"x": buffer}

    with array().map(filled, nb_workers=2) as chain:
        found = [float((item["x"][0] if isinstance(item["x"], list) else item["x"])[0]) for item in chain]
    assert found == list(range(23))
    assert len(bundles) == 5


def test_what_is_written_to_an_item_is_seen_by_no_other(bundles):
    """Also where all of them have the same value for the whole batch."""

    def spoil(batch):
        before = batch["shared"].copy()
        batch["shared"] += 1
        batch["x"][:] += 1000
        return {"x": batch["x"], "before": before}

    data = {"x": np.arange(23), "shared": np.zeros(3)}
    with SequenceArray(data, SamplerSequential(), shared_features=("shared",)).map(spoil, nb_workers=2) as chain:
        items = list(chain)
    assert numbers(items) == [1000 + i for i in range(23)]
    assert not any(item["before"].any() for item in items)
    assert data["x"].max() == 22
    assert not data["shared"].any()


def test_a_list_is_unrolled(bundles):
    with array(7).map(lambda b: [{"x": b["x"]}] * int(b["x"][0] % 3), nb_workers=2) as chain:
        assert numbers(chain) == [1, 2, 2, 4, 5, 5]


def test_items_that_can_not_share_a_description_travel_alone(bundles):
    """A list in them may be one object for all: in a copy of its own for each, as it is when they travel alone."""

    def spoil(batch):
        batch["names"].append("spoilt")
        return {"x": batch["x"], "n": len(batch["names"])}

    data = {"x": np.arange(23), "names": [["a"]] * 23}
    with SequenceArray(data, SamplerSequential()).map(spoil, nb_workers=2) as chain:
        assert {item["n"] for item in chain} == {2}
    assert bundles == []


@pytest.mark.parametrize("where", ["transforms", "preprocess", "collate below"])
def test_a_buffer_that_is_filled_again_for_each_item_is_what_it_was(bundles, where):
    """Before the items are sent: the next one must not be made before the last one is copied."""
    buffer = np.zeros(1, np.int64)

    def refilled(batch, source=None):
        buffer[:] = batch["x"]
        return {"x": buffer}

    if where == "transforms":
        source = SequenceArray({"x": np.arange(23)}, SamplerSequential(), transforms=refilled)
    else:
        source = array()
    if where == "collate below":
        source = source.map(lambda batch: batch, nb_workers=0, collate_fn=refilled)
    with source.map(lambda b: b, nb_workers=2, preprocess_fn=refilled if where == "preprocess" else None) as chain:
        assert numbers(chain) == list(range(23))
    assert len(bundles) == 5


def test_a_large_result_among_small_ones_is_writable(bundles):
    with array().map(lambda b: {"x": b["x"], "y": np.ones(9000 if b["x"][0] % 4 else 1)}, nb_workers=2) as chain:
        for item in chain:
            item["y"] += 1
            assert (item["y"] == 2).all()
    assert len(bundles) == 5


def test_a_result_that_is_kept_keeps_no_other(bundles):
    with array().map(lambda b: {"x": b["x"], "y": np.ones(1000)}, nb_workers=2) as chain:
        assert {item["y"].base for item in chain} == {None}
    assert len(bundles) == 5


def test_items_of_changing_layout_keep_their_order(bundles):
    data = {"x": np.arange(23)}
    source = SequenceArray(
        data, SamplerSequential(), transforms=lambda b: {"x": b["x"], "y": np.zeros(int(b["x"][0]) // 3)}
    )
    with source.map(lambda b: b, nb_workers=2) as chain:
        assert [(int(b["x"][0]), len(b["y"])) for b in chain] == [(i, i // 3) for i in range(23)]


# Positions


@pytest.mark.slow
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("nb_before", [1, 5, 7, 12, 22])
def test_a_position_within_a_bundle_is_kept(bundles, in_order, nb_before):
    def chain():
        return array(sampler=SamplerRandom()).map(drawn, nb_workers=2, in_order=in_order)

    with chain() as first, chain() as second:
        items = iter(first)
        before = [next(items) for _ in range(nb_before)]
        state = items.state_dict()
        expected = sorted(numbers(items))
        again = iter(second)
        again.load_state_dict(state)
        assert sorted(numbers(again)) == expected
    assert sorted([*numbers(before), *expected]) == list(range(23))


def test_an_element_within_a_list_within_a_bundle_is_a_position(bundles):
    def chain():
        return array(7).map(lambda b: [{"x": b["x"] * 10 + i} for i in range(3)], nb_workers=2)

    with chain() as first, chain() as second:
        items = iter(first)
        before = numbers(next(items) for _ in range(10))
        state = items.state_dict()
        again = iter(second)
        again.load_state_dict(state)
        moved = again.state_dict()
        assert [before, numbers(again)] == [
            [0, 1, 2, 10, 11, 12, 20, 21, 22, 30],
            [31, 32, 40, 41, 42, 50, 51, 52, 60, 61, 62],
        ]
        assert moved == state


# When


@pytest.mark.parametrize(
    "options",
    [
        {"max_jobs_at_once": 4},
        {"job_timeout_s": 60.0},
        {"max_tasks_per_worker": 100},
        {"max_retries": 0},
        {"compression": "auto"},
        {"backend": "thread"},
        {"nb_workers": 0},
    ],
    ids=str,
)
def test_where_each_item_counts_for_itself_it_travels_alone(bundles, options):
    with array().map(lambda batch: batch, **{"nb_workers": 2, **options}) as chain:
        assert numbers(chain) == list(range(23))
    assert bundles == []


def test_statistics_count_items(bundles):
    with array().map(raises_at(12, ValueError()), nb_workers=2, on_error="skip") as chain:
        assert len(list(chain)) == 22
        figures = next(one for name, one in chain.statistics().items() if name.startswith("1:"))
    assert (figures["jobs_done"], figures["jobs_failed"]) == (22, 1)
    assert 0 < figures["job_s_p50"] < figures["busy_s"]
    assert bundles


def test_the_size_makes_a_bundle_worth_a_millisecond():
    size = BundleSize()
    assert size.value == 1
    for _ in range(2 * MEASURE_EVERY):
        size.note(BUNDLE_S / 10.5, 1, [b""])
    assert size.value == 10
    for _ in range(MEASURE_EVERY):
        size.note(10 * BUNDLE_S / 20.5, 10, [b""])
    assert size.value == 20
    for _ in range(MEASURE_EVERY):
        size.note(BUNDLE_S / 100, 20, [b""])
    assert size.value == MOST_ITEMS


@pytest.mark.parametrize(
    ("duration_s", "frames"), [(BUNDLE_S / (LEAST_ITEMS - 1), [b""]), (0.0, [b"", bytes(OUT_OF_BAND_BYTES)])]
)
def test_long_jobs_and_large_results_travel_alone(duration_s, frames):
    size = BundleSize()
    for _ in range(10 * MEASURE_EVERY):
        size.note(duration_s, 1, frames)
    assert size.value == 1


@pytest.mark.slow
def test_a_chain_finds_out_by_itself(monkeypatch):
    sizes = []
    put = JobExecutor.put_bundle
    monkeypatch.setattr(JobExecutor, "put_bundle", lambda *given: sizes.append(len(given[1])) or put(*given))
    with array(3000).map(lambda batch: batch, nb_workers=2) as chain:
        assert numbers(chain) == list(range(3000))
    assert sum(sizes) > 1000
    sizes.clear()
    with array(200).map(lambda batch: time.sleep(0.001) or batch, nb_workers=2) as chain:
        assert numbers(chain) == list(range(200))
    assert sizes == []


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("abc"),
            st.one_of(st.integers(-5, 5), st.text(max_size=3), st.lists(st.integers(0, 9), max_size=4).map(np.array)),
            max_size=3,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_items_come_out_of_a_bundle_as_they_went_in(items):
    keys = [(i,) for i in range(len(items))]
    maker = BundleMaker()
    if not all(map(maker.add, items)):
        layouts = [
            [(name, getattr(value, "dtype", 0), getattr(value, "shape", 0)) for name, value in item.items()]
            for item in items
        ]
        assert any(layout != layouts[0] for layout in layouts)
        return
    codec, bundle = PickleCodec("item"), maker.made(keys, JobSeeds(1))
    arrived = codec.decode([bytes(frame) for frame in codec.encode(bundle)])
    assert (arrived.keys, arrived.entropy) == (keys, (1,))
    assert repr(arrived.items()) == repr(items)
