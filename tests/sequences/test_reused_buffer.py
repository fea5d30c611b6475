"""A function may return the same buffer from every call, in this process as in a worker process."""

import numpy as np
import pytest

from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray


@pytest.mark.parametrize("nb_workers", [0, 1])
def test_results_that_share_a_buffer_do_not_overwrite_one_another(nb_workers):
    buffer = np.zeros(1)

    def fill_again(batch):
        buffer[0] = batch["x"][0]
        return {"x": buffer, "nested": [{"x": buffer}]}

    source = SequenceArray({"x": np.arange(4)}, SamplerSequential())
    with source.map(fill_again, nb_workers=nb_workers).batch(4, collate_fn=None) as chain:
        [results] = list(chain)
    assert [result["x"][0] for result in results] == [0, 1, 2, 3]
    assert [result["nested"][0]["x"][0] for result in results] == [0, 1, 2, 3]
