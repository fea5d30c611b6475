"""A last batch of one sample, of which batch normalisation can not make a variance."""

import numpy as np
import pytest
import torch
from toy_trainer import fitting_in, trainer
from toy_training import Net, batches, evaluate, train

from trw_pipeline.sequences.sequence import SequenceArray

SIZES = [(65, 64), (9, 4), (3, 2)]


def inputs(nb_samples, batch_size, discard):
    def split(**options):
        x = np.random.default_rng(0).normal(size=(nb_samples, 3)).astype(np.float32)
        array = SequenceArray({"x": x, "truth": (x[:, 0] > 0).astype(np.int64)})
        return array.batch(batch_size, **options).collate()

    return lambda: {"d": {"train": split(discard_batch_not_full=discard), "valid": split()}}


@pytest.mark.parametrize(("nb_samples", "batch_size"), SIZES)
def test_an_option_leaves_it_out_of_the_training_and_the_evaluation_sees_all(tmp_path, nb_samples, batch_size):
    """BATCH-2."""
    model, result = fitting_in(tmp_path)(
        trainer(), inputs=inputs(nb_samples, batch_size, True), model_fn=lambda options: Net(), num_epochs=1
    )
    seen = {split: figures["info"]["nb_samples"] for split, figures in result["history"][0]["d"].items()}
    assert seen == {"train": nb_samples - 1, "valid": nb_samples}
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


@pytest.mark.parametrize(("nb_samples", "batch_size"), SIZES)
def test_without_the_option_the_error_tells_of_it(tmp_path, nb_samples, batch_size):
    """BATCH-2."""
    with pytest.raises(ValueError, match="more than 1 value per channel") as raised:
        fitting_in(tmp_path)(
            trainer(), inputs=inputs(nb_samples, batch_size, False), model_fn=lambda options: Net(), num_epochs=1
        )
    note, _ = raised.value.__notes__  # the other one names the batch, as of any error
    assert note.startswith(f"batch {nb_samples // batch_size} of d/train has one sample")
    assert "discard_batch_not_full=True" in note


def test_an_error_of_more_samples_or_of_an_evaluation_says_nothing_of_it():
    class Refuses(Net):
        def forward(self, batch):
            raise ValueError("no")

    for run_split, data in ((train, batches(2, 2)), (evaluate, batches(1, 1))):
        with pytest.raises(ValueError, match="no") as raised:
            run_split(Refuses(), data)
        assert not any("one sample" in note for note in raised.value.__notes__)
