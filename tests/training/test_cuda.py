"""What training promises on a GPU."""

import gc

import pytest
import torch
from torch import nn
from toy_resume import Breaks, Broken, without_times
from toy_trainer import Net, batches, sgd, trainer

from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.options import create_default_options

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def splits():
    return {"d": {"train": batches(12, 2), "valid": batches(6, 2)}}


def fit(folder, device, *callbacks, model_fn=lambda options: Net(), inputs=splits, num_epochs=2, **arguments):
    options = create_default_options(folder, num_epochs, device)
    return trainer(*callbacks).fit(options, inputs, model_fn, sgd, **arguments)


@pytest.mark.parametrize(("first", "second"), [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_a_training_goes_on_on_another_device_within_an_epoch(tmp_path, first, second):
    """RES-6."""
    arguments = {"seed": 3, "accumulate": 2, "ema": 0.9}
    whole = fit(tmp_path / "whole", first, **arguments)
    with pytest.raises(Broken):
        fit(tmp_path, first, Breaks(3), CallbackCheckpoint(every_n_steps=1), **arguments)
    again = fit(tmp_path, second, CallbackCheckpoint(), resume=tmp_path / "default_r0", **arguments)
    assert next(again[0].parameters()).device.type == second
    for one, other in zip(whole[0].parameters(), again[0].parameters(), strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu(), rtol=1e-4, atol=1e-5)
    mine, theirs = without_times(whole[1]["history"]), without_times(again[1]["history"])
    assert [entry[:-1] for entry in mine] == [entry[:-1] for entry in theirs]
    assert [entry[-1] for entry in mine] == pytest.approx([entry[-1] for entry in theirs], abs=1e-4)


class Large(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4000), nn.ReLU(), nn.Linear(4000, 4000), nn.ReLU(), nn.Linear(4000, 2))

    def forward(self, batch):
        return {"y": OutputClassification(self.body(batch["x"]), "truth")}


def test_a_resume_takes_no_more_memory_than_the_training(tmp_path):
    """RES-6: at most a tenth more."""
    peaks = []
    for arguments in ({}, {"num_epochs": 4, "resume": tmp_path / "default_r0"}):
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        fit(tmp_path, "cuda", CallbackCheckpoint(), model_fn=lambda options: Large(), **arguments)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= 1.1 * peaks[0]


def test_as_much_memory_is_taken_after_100_steps_as_after_10(tmp_path):
    """MEM-7."""
    seen = []

    class Measures(Callback):
        def on_step_end(self, run):
            if run.nb_steps in (10, 100):
                seen.append(torch.cuda.memory_allocated())

    fit(tmp_path, "cuda", Measures(), inputs=lambda: {"d": {"train": batches(220, 2)}}, num_epochs=1)
    # Rows that are collected grow with the samples: two logits, a class, a truth and a loss of each.
    assert seen[1] - seen[0] < 100_000


def test_the_device_waits_for_nobody_between_the_batches_of_a_split(tmp_path):
    """T14: whatever makes the host wait for the device is an error meanwhile."""
    watched = []

    class Forbids(Callback):
        def on_batch_start(self, run):
            torch.cuda.set_sync_debug_mode("error" if run.batch_index > 1 else "default")

        def on_batch_end(self, run):
            if torch.cuda.get_sync_debug_mode() == 2:  # "error"
                watched.append((run.epoch, run.is_final, run.split, run.batch_index))
            torch.cuda.set_sync_debug_mode("default")

    pinned = [{name: value.pin_memory() for name, value in batch.items()} for batch in batches(20, 2)]
    for batch in pinned:
        batch["truth"][0] = -100  # of no class: how many there are is not asked either
    inputs = {"train": pinned, "valid": pinned}
    try:
        fit(tmp_path, "cuda", Forbids(), inputs=lambda: {"d": inputs})
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # Of ten batches eight: in two epochs and the final evaluation, of two splits each.
    entries = [(0, False), (1, False), (2, True)]
    assert watched == [(*entry, split, number) for entry in entries for split in inputs for number in range(2, 10)]
