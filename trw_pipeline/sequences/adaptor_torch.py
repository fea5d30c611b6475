"""A `torch.utils.data.DataLoader` as a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Values
from typing import TYPE_CHECKING, Any

from trw_pipeline.sequences.iterator import Epoch, PlainIterator, SequenceIterator
from trw_pipeline.sequences.recipe import EngineRecipe
from trw_pipeline.sequences.sequence import Sequence
from trw_pipeline.typing import Batch

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class SequenceAdaptorTorch(EngineRecipe, Sequence):
    """The batches of a PyTorch loader, as dicts.

    The loader shuffles by its own generator; the number of the epoch is passed on to a sampler that has `set_epoch`.
    `subsample` and `subsample_uids` read samples from the loader into memory.

    Args:
        torch_dataloader: gives dicts, which pass as they are, or tuples and lists of features.
        features: their names; by default `feature_0`, `feature_1`, ...

    Raises:
        ValueError: while iterating, a batch has not as many features as there are names.
        TypeError: `torch_dataloader` is not a loader (a dataset is none); or, while iterating, a batch is neither a
            dict, a tuple nor a list.
    """

    def __init__(self, torch_dataloader: DataLoader[Any], features: Values[str] | None = None) -> None:
        if not all(hasattr(torch_dataloader, name) for name in ("sampler", "batch_sampler")):
            raise TypeError(
                f"torch_dataloader must be a torch.utils.data.DataLoader, got {type(torch_dataloader).__name__}; of a "
                "dataset make one: DataLoader(dataset, batch_size=...)"
            )
        super().__init__(None, torch_dataloader=torch_dataloader, features=features)
        self._loader = torch_dataloader
        self._features = None if features is None else list(features)

    def open_epoch(self, epoch: Epoch) -> SequenceIterator:
        """Opens an epoch of the loader."""
        self.check_open()
        for sampler in (self._loader.sampler, self._loader.batch_sampler):
            set_epoch = getattr(sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch.number)
        return PlainIterator(self._named(), type(self).__name__)

    def _named(self) -> Iterator[Batch]:
        for batch in self._loader:
            if isinstance(batch, Mapping):
                yield dict(batch)
                continue
            if not isinstance(batch, (tuple, list)):
                raise TypeError(f"a loader must give dicts, tuples or lists, got {type(batch).__name__}")
            names = self._features or [f"feature_{i}" for i in range(len(batch))]
            if len(names) != len(batch):
                raise ValueError(f"features names {len(names)} features {names}, but a batch has {len(batch)}")
            yield dict(zip(names, batch, strict=True))

    def __len__(self) -> int:
        return len(self._loader)

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"SequenceAdaptorTorch({type(self._loader).__name__})"
