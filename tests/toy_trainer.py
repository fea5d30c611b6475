"""A small model, a data set of two splits, and trainers with just the callbacks that a test wants."""

import functools

import torch
from torch import nn

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.optimizers import create_sgd_optimizers_fn
from trw_pipeline.training.options import create_default_options

# Several threads wait for each other longer than these tensors take.
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, batch):
        return {"y": OutputClassification(self.inner(batch["x"]), "truth")}


def batches(nb_samples, batch_size=2):
    x = torch.randn(nb_samples, 3, generator=torch.Generator().manual_seed(0))
    whole = {"x": x, "truth": (x[:, 0] > 0).long(), "sample_uid": torch.arange(nb_samples)}
    return [
        {name: value[start : start + batch_size] for name, value in whole.items()}
        for start in range(0, nb_samples, batch_size)
    ]


def datasets():
    return {"d": {"train": batches(6), "valid": batches(4)}}


sgd = functools.partial(create_sgd_optimizers_fn, learning_rate=0.1)


def trainer(*per_epoch, pre=(), post=(), **arguments):
    return Trainer(
        callbacks_per_epoch_fn=lambda: list(per_epoch),
        callbacks_pre_training_fn=lambda: list(pre),
        callbacks_post_training_fn=lambda: list(post),
        **arguments,
    )


def fitting_in(folder):
    """A `fit` with two epochs of the small model, in a folder of runs."""

    def fit(trainer, *, inputs=datasets, optimizers_fn=sgd, num_epochs=2, model_fn=lambda options: Net(), **arguments):
        options = create_default_options(folder, num_epochs, "cpu")
        return trainer.fit(options, inputs, model_fn, optimizers_fn, **arguments)

    return fit


def broken(error, hook="on_epoch_end"):
    class Breaks(Callback):
        pass

    def fail(self, run):
        raise error

    setattr(Breaks, hook, fail)
    return Breaks()


SCORE = ("d", "valid", "y", "score")


class Scores(Callback):
    """Puts planned values of the metric `SCORE` into the history, before others look at it."""

    def __init__(self, values):
        self.values = values

    def on_split_end(self, run):
        value = self.values[run.epoch] if run.epoch < len(self.values) else None
        if run.split == "valid" and value is not None:
            run.history[-1]["d"]["valid"].setdefault("y", {})["score"] = value
