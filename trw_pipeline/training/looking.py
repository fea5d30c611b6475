"""Looks at the batches of a split beside the training, which goes on as if nobody had looked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from trw_pipeline.batches.device import get_device, transfer_batch_to_device
from trw_pipeline.training.callback import BatchCallback
from trw_pipeline.training.default_names import find_default_dataset_and_split_names
from trw_pipeline.training.randomness import random_states, set_random_states
from trw_pipeline.typing import Batch, Datasets, Split

_logger = logging.getLogger(__name__)


@contextmanager
def beside(split: Split, narrow: Callable[[Any], Any] | None = None) -> Generator[Split, None, None]:
    """Give what is to be read in place of a split of a training, which stays as it is.

    The state of the global random generators, and of those of a loader of torch, is put back.

    Args:
        split: the split. Of a chain of ours one like it is read, with workers of its own; any other is read itself.
        narrow: makes of a chain of ours the one that is read, and closed after it; None: one like it.

    Yields:
        What to read.
    """
    states = random_states()
    generators = [(generator, generator.get_state()) for generator in _generators(split)]
    kept = [(source, source.kept_state()) for source in _sources(split) if hasattr(source, "kept_state")]
    try:
        if hasattr(split, "like_this"):
            with cast("Any", split).like_this() if narrow is None else narrow(split) as other:
                yield other
        else:
            yield split
    finally:
        set_random_states(states)
        for generator, state in generators:
            generator.set_state(state)
        for source, state in kept:  # a chain over a loader has its generators
            source.load_kept_state(state)


def can_be_read_again(split: Split, name: str) -> bool:
    """Find out whether reading a split leaves anything for the training.

    Args:
        split: the split. An iterator that is no chain of ours, and a chain over one, can be read once.
        name: of the split, for the warning that it is left out.

    Returns:
        Whether it can be read.
    """
    again = cast("Any", split).can_be_read_again if hasattr(split, "like_this") else not hasattr(split, "__next__")
    if not again:
        _logger.warning("the split %s can be read only once: it is left to the training, and not looked at", name)
    return again


def split_to_look_at(
    datasets: Datasets, dataset_name: str | None, split_name: str | None, train_split: str
) -> tuple[str, str]:
    """Choose a split: what was asked for, else the first that is not trained on, else the one that is.

    Args:
        datasets: dataset name -> split name -> split.
        dataset_name: the dataset, or None.
        split_name: the split, or None.
        train_split: name of the split that is trained on.

    Returns:
        Name of the dataset, name of the split.

    Raises:
        ValueError: what was asked for is absent, or nothing is there.
    """
    wanted = datasets if dataset_name is None else {dataset_name: datasets.get(dataset_name, {})}
    has_others = any(name != train_split for dataset in wanted.values() for name in dataset)
    left_out = train_split if split_name is None and has_others else None
    return find_default_dataset_and_split_names(datasets, dataset_name, split_name, left_out)


def first_batch(
    model: nn.Module,
    datasets: Datasets,
    dataset_name: str,
    split_name: str,
    callbacks_per_batch: Iterable[BatchCallback] | None = None,
) -> Batch | None:
    """Read one batch as the model sees it: on its device, with the names of where it comes from.

    Args:
        model: whose device it is.
        datasets: dataset name -> split name -> split.
        dataset_name: name of the dataset.
        split_name: name of the split.
        callbacks_per_batch: called with the batch, in order; or None. That one of them would end the split does not
            matter here.

    Returns:
        The batch, a dict of its own; None, with a warning, if the split has none, or can be read only once.
    """
    if not can_be_read_again(datasets[dataset_name][split_name], f"{dataset_name}/{split_name}"):
        return None
    with beside(datasets[dataset_name][split_name]) as split:
        iterator = iter(split)
        try:
            given = next(iterator, None)
        finally:
            # A split that is its own iterator was opened by somebody else, who may want to go on with it.
            close = getattr(iterator, "close", None)
            if iterator is not split and close is not None:
                close()
        if given is None:
            _logger.warning("the split %s/%s has no batch to look at", dataset_name, split_name)
            return None
        batch = transfer_batch_to_device(given, get_device(model, given) or torch.device("cpu"))
        batch["dataset_name"], batch["split_name"] = dataset_name, split_name
        for callback in callbacks_per_batch or ():
            try:
                callback(dataset_name, split_name, batch)
            except StopIteration:
                continue
        return batch


def _generators(split: Any) -> list[torch.Generator]:
    samplers = [getattr(split, "sampler", None), getattr(getattr(split, "batch_sampler", None), "sampler", None)]
    found = [getattr(owner, "generator", None) for owner in (split, *samplers)]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def _sources(split: Any) -> Iterator[Any]:
    """Yields the sources of a chain of ours; of any other split nothing."""
    if hasattr(split, "like_this") and not split.sources:
        yield split
    for source in getattr(split, "sources", ()):
        yield from _sources(source)
