"""Running a split again for its samples, and for what the model says of each.

A callback that wants them runs the split a second time, beside the training (see `beside`), and stops as soon as it has
seen enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from trw_pipeline.batches.device import to_value
from trw_pipeline.batches.length import holds_samples, len_batch
from trw_pipeline.nets.mode import looked_at
from trw_pipeline.outputs.output import LossTerm
from trw_pipeline.training.callback import BatchCallback, create_hook_table, with_batch_callbacks
from trw_pipeline.training.history import INFO, History
from trw_pipeline.training.looking import beside, can_be_read_again
from trw_pipeline.training.options import Options
from trw_pipeline.training.randomness import seeded
from trw_pipeline.training.run import LossFn, Run
from trw_pipeline.training.split import forward, one_split
from trw_pipeline.typing import Batch, Datasets, Split


def every_split(datasets: Datasets) -> Iterator[tuple[str, str, Split]]:
    """Yields (dataset name, split name, split) of those that can be read again."""
    for dataset_name, dataset in datasets.items():
        for split_name, split in dataset.items():
            if can_be_read_again(split, f"{dataset_name}/{split_name}"):
                yield dataset_name, split_name, split


@dataclass(frozen=True)
class SecondLook:
    """What batches go through when they are read again: the documented arguments of a callback.

    Attributes:
        options: have the device.
        model: judges them, in evaluation mode and without gradients.
        losses: dataset name -> loss function.
        callbacks_per_batch: see each batch before the model does.
    """

    options: Options
    model: nn.Module
    losses: Mapping[str, LossFn]
    callbacks_per_batch: Any

    def judge(self, split: Split, dataset_name: str, split_name: str, look: Callable[[Run], Any]) -> None:
        """Puts each batch through the model and calls `look` with the run, which has `batch` and `terms`.

        Nothing is gathered. `look` ends the split by setting `run.split_stopped`.
        """

        def step(run: Run) -> None:
            forward(run)
            look(run)

        with looked_at(self.model):
            one_split(self._run(dataset_name, split_name), split, step)

    def read(self, split: Split, dataset_name: str, split_name: str, look: Callable[[Run], Any]) -> None:
        """Does so without the model: the run has the `batch` alone."""
        one_split(self._run(dataset_name, split_name), split, look)

    def _run(self, dataset_name: str, split_name: str) -> Run:
        callbacks = cast("list[BatchCallback]", self.callbacks_per_batch or [])
        return Run(
            self.model,
            torch.device(self.options["workflow_options"]["device"]),
            hooks=with_batch_callbacks(create_hook_table(), callbacks, None),
            dataset=dataset_name,
            split=split_name,
            loss_fn=self.losses.get(dataset_name),
        )


def sample_of(batch: Batch, index: int) -> dict[str, Any]:
    """Gives the features of one sample of a batch, without the batch axis; what is batch-wide as it is."""
    nb_samples = len_batch(batch)
    return {
        name: value[index] if holds_samples(value) and len(value) == nb_samples else value
        for name, value in batch.items()
    }


@contextmanager
def shown(split: Split, narrow: Callable[[Any], Any] | None = None) -> Generator[Split, None, None]:
    """Does `beside` with the global generators seeded, always the same: so samples are shown that were shown before."""
    with seeded(0), beside(split, narrow) as other:
        yield other


def uids_of(batch: Batch, uid_name: str) -> list[Any] | None:
    """Gives the uids of the samples of a batch as plain numbers and texts; None if it has none."""
    uids = batch.get(uid_name)
    return as_uids(uids) if holds_samples(uids) and len(cast("Any", uids)) == len_batch(batch) else None


def as_uids(values: Any) -> list[Any]:
    """Gives uids, in a list, array or tensor, as plain values that can be looked up."""
    values = to_value(values)
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return values.tolist()
    plain = [value.tolist() if hasattr(value, "tolist") else value for value in values]
    return [tuple(uid) if isinstance(uid, list) else uid for uid in plain]


def places_of(batch: Batch, first: int) -> list[int]:
    """Gives the numbers of the samples of a batch in its split, of which the first is `first`."""
    return list(range(first, first + len_batch(batch)))


def are_known_by_place(split: Split) -> bool:
    """Whether the samples of a split are at the same places each time that it is read, as in a list."""
    return isinstance(split, Sequence)


def only_uids(chain: Any, uids: Iterable[Any], uid_name: str) -> Any:
    """Gives a chain of these samples; of all samples where the source of the chain has no such feature."""
    try:
        return chain.subsample_uids(uids, uid_name)
    except ValueError:
        return chain.like_this()


def losses_by_sample(term: LossTerm) -> torch.Tensor | None:
    """Gives the loss of each sample that a head reports: `(N,)` float64 on the host, means where there are several."""
    losses = term.get("losses")
    if not holds_samples(losses):
        return None
    losses = torch.as_tensor(losses).detach().cpu().double()
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def nb_samples_of(history: History, dataset_name: str, split_name: str) -> float:
    """Gives the samples that a split had when it was run last, so that an endless one ends there again; else inf."""
    runs = [epoch[dataset_name][split_name] for epoch in history if split_name in epoch.get(dataset_name, {})]
    return runs[-1].get(INFO, {}).get("nb_samples", math.inf) if runs else math.inf
