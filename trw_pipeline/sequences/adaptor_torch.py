"""A `torch.utils.data.DataLoader` as a sequence."""

from __future__ import annotations

from collections.abc import Sequence as Values
from functools import partial
from typing import TYPE_CHECKING, Any

from trw_pipeline.sequences.iterable import ReadableRecipe
from trw_pipeline.sequences.iterable_iterator import Readable
from trw_pipeline.sequences.samples import check_features, named_features
from trw_pipeline.sequences.sequence import Sequence

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class SequenceAdaptorTorch(ReadableRecipe, Sequence):
    """The batches of a PyTorch loader, as dicts.

    The number of the epoch is passed on to a sampler, batch sampler or dataset that has `set_epoch`. A `generator` that
    the loader or its sampler was given is used, and its state saved. Without one, the loader shuffles by the chain's
    seed: for the time of each step `random`, `numpy.random` and torch are seeded from it, the epoch and the number of
    the batch, and so are the loader's workers. (Not those that live on with `persistent_workers=True`.)

    A position is what the loader says of itself, where it has `state_dict` and `load_state_dict`. Else it is replayed:
    the batches of the epoch up to there are loaded again, and dropped.

    `subsample` and `subsample_uids` read samples from the loader into memory.

    Args:
        torch_dataloader: gives dicts, which pass as they are, or tuples and lists of features.
        features: their names; by default `feature_0`, `feature_1`, ...

    Raises:
        ValueError: while iterating, a batch has not as many features as there are names.
        TypeError: `torch_dataloader` is not a loader (a dataset is none); or, while iterating, a batch is neither a
            dict, a tuple nor a list.
        CheckpointError: while iterating, a restored epoch has fewer batches than were seen before.
    """

    def __init__(self, torch_dataloader: DataLoader[Any], features: Values[str] | None = None) -> None:
        if not all(hasattr(torch_dataloader, name) for name in ("sampler", "batch_sampler")):
            raise TypeError(
                f"torch_dataloader must be a torch.utils.data.DataLoader, got {type(torch_dataloader).__name__}; a "
                "dataset is read by SequenceDataset or SequenceIterable"
            )
        loader: Any = torch_dataloader
        parts = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None), loader.dataset)
        to_batch = partial(named_features, features=check_features(features), whose="a loader")
        readable = Readable(loader, type(self).__name__, to_batch, *parts)
        super().__init__(readable, torch_dataloader=torch_dataloader, features=features)
        self._loader = torch_dataloader

    def __len__(self) -> int:
        return len(self._loader)

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"SequenceAdaptorTorch({type(self._loader).__name__}; state: {self.how_saved})"
