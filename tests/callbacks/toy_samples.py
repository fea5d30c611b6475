"""Trainings on small images, for the callbacks that show samples."""

import random
from pathlib import Path

import numpy as np
import torch
from torch import nn

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.optimizers import create_sgd_optimizers_fn
from trw_pipeline.training.options import create_default_options

torch.set_num_threads(1)

INFOS = {
    "d": {
        split: {"output_mappings": {"truth": {"mappinginv": {0: "cat", 1: "dog", 2: "cow"}}}}
        for split in ("train", "valid")
    }
}


class Says(nn.Module):
    """Says of each sample the class that its feature `said` names, the surer the larger `sure` is."""

    def __init__(self, *heads, collect_output=True):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(3))
        self.heads = heads or ("y",)
        self.collect_output = collect_output

    def forward(self, batch):
        scores = 4.0 * nn.functional.one_hot(batch["said"], 3) + self.bias
        return {name: OutputClassification(scores, "truth", collect_output=self.collect_output) for name in self.heads}


def samples(nb_samples=6, wrong=(1, 4)):
    """Samples of the classes 0, 1, 2, 0, ... with uids 100, 101, ...; of the `wrong` ones another class is said."""
    truth = np.arange(nb_samples) % 3
    said = truth.copy()
    said[list(wrong)] = (said[list(wrong)] + 1) % 3
    image = np.zeros((nb_samples, 1, 8, 8), np.float32)
    image[np.arange(nb_samples), 0, 0, np.arange(nb_samples) % 8] = 1
    return {
        "sample_uid": np.arange(100, 100 + nb_samples),
        "truth": truth.astype(np.int64),
        "said": said.astype(np.int64),
        "image": image,
        "name": [f"sample {index}" for index in range(nb_samples)],
    }


def chain(batch_size=2, transforms=None, **keywords):
    array = SequenceArray(samples(**keywords), SamplerSequential(), transforms).with_seed(0)
    return array.batch(batch_size).collate()


def batches(batch_size=2, without=(), **keywords):
    whole = samples(**keywords)
    return [
        {
            name: torch.from_numpy(value[start : start + batch_size])
            if isinstance(value, np.ndarray)
            else value[start : start + batch_size]
            for name, value in whole.items()
            if name not in without
        }
        for start in range(0, len(whole["truth"]), batch_size)
    ]


class Endless:
    def __init__(self, **keywords):
        self.batches = batches(**keywords)

    def __iter__(self):
        while True:
            yield from self.batches


def fit(
    folder,
    callbacks,
    datasets,
    where="callbacks_per_epoch_fn",
    num_epochs=1,
    model=None,
    more_callbacks=None,
    **keywords,
):
    """Trains without learning: the rate is 0. Returns the run folder and what `fit` gives."""
    lists = dict.fromkeys(("callbacks_per_epoch_fn", "callbacks_pre_training_fn", "callbacks_post_training_fn"))
    trainer = Trainer(**lists | {where: lambda: callbacks} | (more_callbacks or {}))
    model, result = trainer.fit(
        create_default_options(folder, num_epochs, "cpu"),
        lambda: (datasets, INFOS),
        lambda options: model or Says(),
        lambda datasets, model: create_sgd_optimizers_fn(datasets, model, 0.0),
        **keywords,
    )
    return Path(result["options"]["workflow_options"]["current_logging_directory"]), model, result


def random_states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def names_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def lines_of(path):
    """The lines of a text as a dict; of several with one name the last."""
    return dict(line.split(": ", 1) for line in path.read_text().splitlines())
