"""What is batch-wide at the source is kept once by the stages that join, until a function makes it a sample's own."""

from __future__ import annotations

import numpy as np
import pytest

from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

JOIN = {
    "batch": lambda sequence: sequence.batch(2),
    "rebatch": lambda sequence: sequence.rebatch(2),
    "collate of lists": lambda sequence: sequence.batch(2, collate_fn=None).collate(),
}


@pytest.fixture(params=JOIN.values(), ids=JOIN.keys())
def join(request):
    return request.param


def array():
    return SequenceArray({"x": np.arange(4), "dataset": "mnist", "scale": 0.5}, SamplerSequential())


def test_a_text_and_a_number_of_the_split_are_kept_once(join):
    batches = list(join(array().map(lambda batch: batch)))
    assert [(batch["dataset"], batch["scale"]) for batch in batches] == [("mnist", 0.5), ("mnist", 0.5)]


def test_values_that_a_function_made_different_are_one_for_each_sample(join):
    def own(batch):
        x = int(batch["x"][0])
        return {**batch, "dataset": f"part {x}", "scale": 0.5 * x}

    first, second = join(array().map(own))
    assert first["dataset"] == ["part 0", "part 1"]
    assert second["dataset"] == ["part 2", "part 3"]
    assert first["scale"].tolist() == [0, 0.5]
    assert second["scale"].tolist() == [1, 1.5]


def test_a_list_that_a_function_made_of_a_batch_wide_value_is_one_for_each_sample(join):
    batches = list(join(array().map(lambda batch: {**batch, "dataset": [batch["dataset"]]})))
    assert [batch["dataset"] for batch in batches] == [["mnist", "mnist"]] * 2


def test_a_number_that_a_function_added_is_one_for_each_sample(join):
    batches = list(join(array().map(lambda batch: {**batch, "level": 7})))
    assert [batch["level"].tolist() for batch in batches] == [[7, 7]] * 2


def test_items_without_a_batch_axis_are_refused_with_both_lengths():
    def single(batch):
        return {"image": np.zeros((3, 4, 4)), "target": int(batch["x"][0])}

    with pytest.raises(ValueError, match=r"'image': 6.*'target': 2"):
        list(SequenceArray({"x": np.arange(2)}).map(single).batch(2))
