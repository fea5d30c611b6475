"""How the batches of a split reach the loop: opened, counted, timed, and left in good order."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any, cast

from torch.utils.data import DataLoader, IterableDataset

from trw_pipeline.errors import CheckpointError
from trw_pipeline.training.randomness import set_random_states
from trw_pipeline.training.run import Run
from trw_pipeline.typing import Split


def length_of(split: Split) -> int | None:
    """The batches of a split, where it knows them; what a loader says of an iterable dataset is a guess."""
    if isinstance(split, DataLoader) and isinstance(split.dataset, IterableDataset):
        return None
    try:
        return len(cast("Any", split))
    except TypeError:
        return None


def arrivals(run: Run, split: Split, point: Mapping[str, Any] | None) -> Generator[Any, None, None]:
    """The batches of a split; the time inside `iter` and `next` is what the loop waited for data.

    As a generator it turns a StopIteration of `iter(split)` into a RuntimeError by itself.
    """
    asked = run.clock()
    iterator = _opened(split, point)
    run.wait_s += run.clock() - asked
    place = run.place
    if place is not None:
        place.iterator = iterator
    is_exhausted = False
    try:
        while True:
            if place is not None and run.batch_index != run.num_batches:  # else the split is over
                place.note()
                run.is_between_batches = True
                for at_boundary in run.at_boundaries:
                    at_boundary(run)
            asked = run.clock()  # not before: a checkpoint that is written here is no data to wait for
            try:
                batch = next(iterator)
            except StopIteration:
                is_exhausted = True
                return
            finally:
                run.wait_s += run.clock() - asked
            yield batch
    finally:
        run.is_between_batches = False
        if place is not None and not is_exhausted:
            place.keep(split)
        # A split that is its own iterator was opened by somebody else, who may want to go on with it.
        close = getattr(iterator, "close", None)
        if iterator is not split and close is not None:
            close()


def _opened(split: Split, point: Mapping[str, Any] | None) -> Iterator[Any]:
    """Open a split; where a checkpoint was made within it, behind the batches that are done.

    A split with a state of its own goes there by itself. Any other is opened with the generators as they were, so that
    it is shuffled as it was, and its first batches are thrown away.
    """
    if point is None:
        return iter(split)
    if not hasattr(split, "load_state_dict"):
        set_random_states(point["random"])
    iterator = iter(split)
    if not hasattr(split, "load_state_dict"):
        for number in range(point["batch_index"]):
            if next(iterator, None) is None:
                raise CheckpointError(
                    f"the checkpoint was made after {point['batch_index']} batches of {point['dataset']}/"
                    f"{point['split']}, which has {number} now"
                )
    set_random_states(point["random_now"])
    return iterator
