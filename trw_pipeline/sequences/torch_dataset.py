"""A sequence as a dataset of PyTorch, for a `DataLoader` that somebody insists on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from trw_pipeline.executors.pickle_codec import PickleCodec
from trw_pipeline.sequences.recipe import Recipe
from trw_pipeline.typing import Item


class ItemDataset(IterableDataset[Item]):
    """The items of a sequence, in order, each once an epoch: for `DataLoader(sequence.to_dataset(), batch_size=None)`.

    Each `iter()` is the next epoch, in another order where the source shuffles. The chain has its own workers, so the
    loader needs none. With `num_workers` of one or more the chain runs in the first worker of the loader, whose process
    then does what the chain does outside of its own workers (its source, `collate`), and starts those; the others give
    nothing. Epochs are counted for all of them together, whether they live on (`persistent_workers`) or not.

    Args:
        sequence: gives the items. Without workers of the loader, `set_epoch`, `state_dict` and `load_state_dict` of the
            sequence are those of the loader; with them it is a copy that runs, from epoch 0 on.
        next_epoch: number of the epoch that the next worker opens, int64 (), in shared memory; None begins with 0.
    """

    def __init__(self, sequence: Recipe, next_epoch: torch.Tensor | None = None) -> None:
        self.sequence: Any = sequence
        _ = sequence.seed  # drawn now, so that copies have the same
        # In memory that workers share: one that starts anew for each epoch could not count them.
        self._next_epoch = torch.zeros((), dtype=torch.int64).share_memory_() if next_epoch is None else next_epoch

    def __iter__(self) -> Iterator[Item]:
        worker = get_worker_info()
        if worker is None:
            return iter(self.sequence)
        if worker.id > 0:
            return iter(())
        self.sequence.set_epoch(int(self._next_epoch))
        self._next_epoch += 1
        return iter(self.sequence)

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the epoch that the next `iter()` opens, here or in a worker of the loader."""
        self.sequence.set_epoch(epoch)
        self._next_epoch.fill_(epoch)

    def __len__(self) -> int:
        """Returns the number of items an epoch.

        Raises:
            TypeError: it is not known.
        """
        return len(self.sequence)

    def __reduce__(self) -> tuple[Any, ...]:
        # By value where it must be: a chain may hold lambdas, and functions of the main script.
        frames = [bytes(frame) for frame in PickleCodec("sequence", by_file=True).encode(self.sequence)]
        return _made_again, (frames, self._next_epoch)


def _made_again(frames: list[bytes], next_epoch: torch.Tensor) -> ItemDataset:
    return ItemDataset(PickleCodec("sequence", by_file=True).decode(frames), next_epoch)
