"""What a training keeps: as much after many steps and epochs as after a few, and no graph of a step that is over."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from toy_trainer import batches, fitting_in, trainer

from trw_pipeline.callbacks.defaults import default_per_epoch_callbacks
from trw_pipeline.callbacks.progress_bar import CallbackProgressBar
from trw_pipeline.training.callback import Callback


def live_tensors() -> list[torch.Tensor]:
    """Returns all tensors there are, whoever holds them."""
    gc.collect()
    return [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]


class Census(Callback):
    """Counts the tensors there are after some of the training steps."""

    def __init__(self, *steps):
        self.steps = steps
        self.nb_steps = 0
        self.counts = []
        self.graphs = set()

    def on_loss(self, run):
        self.graphs.add((run.training, run.loss.requires_grad))

    def on_batch_end(self, run):
        self.nb_steps += run.training
        if run.training and self.nb_steps in self.steps:
            self.counts.append(len(live_tensors()))


@pytest.mark.slow
@pytest.mark.parametrize(("nb_steps", "nb_epochs"), [(500, 1), (45, 12)])
def test_as_many_tensors_live_after_500_steps_as_after_50_and_none_of_them_has_a_graph(tmp_path, nb_steps, nb_epochs):
    """MEM-7, in one epoch, and from the middle of one to that of a later one."""
    split = {"train": batches(2 * nb_steps), "valid": batches(100)}
    before = live_tensors()
    census = Census(50, 500)
    callbacks = [*default_per_epoch_callbacks(), CallbackProgressBar(), census]
    trained = trainer(*callbacks)
    model, result = fitting_in(tmp_path)(trained, inputs=lambda: {"d": split}, num_epochs=nb_epochs)
    assert census.nb_steps == nb_steps * nb_epochs
    assert census.counts[0] == census.counts[1]
    assert census.graphs == {(True, True), (False, False)}
    kept = [one for one in live_tensors() if one.grad_fn is not None and all(one is not old for old in before)]
    assert kept == []
    assert len(result["history"]) == nb_epochs + 1
    assert model.inner.weight.requires_grad


def test_memory_does_not_rise_from_epoch_to_epoch_of_a_training_with_workers(program):
    """MEM-4: map, reservoir and trainer; of the program and its workers together."""
    result = program(f"""
        import itertools, sys
        import numpy as np, psutil
        from torch import nn
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from toy_trainer import Net, batches, fitting_in, trainer
        from trw_pipeline.sequences.sequence import SequenceArray
        from trw_pipeline.callbacks.defaults import default_per_epoch_callbacks
        from trw_pipeline.training.callback import Callback

        class Measures(Callback):
            measured = []

            def on_epoch_end(self, run):
                me = psutil.Process()
                family = [me, *me.children(recursive=True)]
                self.measured.append(sum(process.memory_info().rss for process in family) / 1e6)

        def load(batch):
            return {{**batch, "image": np.zeros((1, 200_000), np.float32)}}

        def enlarge(batch):
            return {{"x": batch["image"][:, :3].repeat(2, 0), "image": np.ones((2, 200_000), np.float32),
                    "truth": batch["truth"].repeat(2)}}

        data = SequenceArray({{"truth": np.arange(40) % 2}}).map(load, nb_workers=1)
        data = data.async_reservoir(10, enlarge, 10, nb_workers=1, max_jobs_at_once=5).collate().batch(4)
        callbacks = [*default_per_epoch_callbacks(), Measures()]
        with data:
            fitting_in("runs")(trainer(*callbacks), inputs=lambda: {{"d": {{"train": data}}}}, num_epochs=30)
        measured = Measures.measured
        assert len(measured) == 30
        pairs = itertools.combinations(enumerate(measured[5:]), 2)
        print(np.median([(later - sooner) / (j - i) for (i, sooner), (j, later) in pairs]))  # a peak or two do not tell
        """).finish(timeout_s=100)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 1.0
