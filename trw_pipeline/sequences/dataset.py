"""`SequenceDataset`: a map-style dataset, read in workers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Values
from typing import Any, Self, Unpack

import numpy as np

from trw_pipeline.sequences.array import ArrayRecipe, rows_with
from trw_pipeline.sequences.job_options import JobOptions
from trw_pipeline.sequences.map import MapRecipe
from trw_pipeline.sequences.samplers import Sampler
from trw_pipeline.sequences.samples import Fetch, check_features
from trw_pipeline.typing import NbWorkers, default_sample_uid_name


class DatasetRecipe(MapRecipe):
    """Samples of a map-style dataset: of PyTorch, Hugging Face, or anything with `__len__` and `__getitem__`.

    `dataset[i]` is called in the workers, once for each number that the sampler draws, however many workers there are;
    a dataset that has `__getitems__` gets the numbers of a batch together. The dataset is sent to each worker once, and
    again where it has changed between two epochs: one that holds much in memory is better read by threads.

    Each sample becomes a batch of one: arrays and tensors get an axis 0, all else a list of one; of several that are
    drawn together, arrays and tensors are joined on it. `sample_uid` is the number in the dataset, unless the samples
    have one of their own. A position is saved by index: nothing is read again to go there. Before each call the global
    generators are seeded as for a mapped function.

    Args:
        dataset: gives dicts, or tuples and lists of features.
        sampler: which samples make a batch, and in which order; by default each once in random order, one at a time.
        nb_workers: number of workers; 0 reads in this process; "auto" as in `SequenceMap`.
        max_jobs_at_once: see `SequenceMap`.
        features: names of the features of tuples and lists; by default `feature_0`, `feature_1`, ...
        **options: see `trw_pipeline.JobOptions`.

    Raises:
        TypeError: `dataset` has no length or no numbered samples (`SequenceIterable` reads those), or an argument is of
            a wrong kind.
        ValueError: an argument is out of range.
        JobError: while iterating, a sample could not be read or is neither a dict, a tuple nor a list, or the arrays of
            samples that are drawn together differ in shape.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Sampler | None = None,
        nb_workers: NbWorkers = 0,
        max_jobs_at_once: int | None = None,
        *,
        features: Values[str] | None = None,
        **options: Unpack[JobOptions],
    ) -> None:
        iterable_type = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
        if isinstance(dataset, iterable_type) or not all(hasattr(dataset, it) for it in ("__len__", "__getitem__")):
            raise TypeError(
                f"dataset must have __len__ and __getitem__, got {type(dataset).__name__}; what can only be iterated "
                "is read by SequenceIterable"
            )
        if isinstance(dataset, Mapping):
            raise TypeError(f"dataset must have numbered samples, got {type(dataset).__name__}; see SequenceArray")
        numbers = ArrayRecipe({default_sample_uid_name: np.arange(len(dataset))}, sampler)
        super().__init__(numbers, nb_workers, Fetch(dataset, check_features(features)), max_jobs_at_once, **options)

    @property
    def _fetch(self) -> Fetch:
        return self._arguments["function_to_run"]

    @classmethod
    def made_of(cls, source: Any, arguments: Mapping[str, Any]) -> Self:
        """Makes one of a source of numbers, and of the arguments of a map, which it is then."""
        made = cls.__new__(cls)
        MapRecipe.__init__(made, source, **arguments)
        return made

    def __len__(self) -> int:
        if self._arguments.get("on_error") == "skip":
            raise TypeError("the length of a dataset of which samples may be skipped is not known")
        return len(self.source_split)

    def subsample_uids(self, uids: Iterable[Any], uids_name: str, new_sampler: Sampler | None = None) -> Any:
        """Returns this sequence over the samples whose feature `uids_name` is one of `uids`, read in this process.

        They come in the order of `uids`, as far as the sampler keeps it; unknown uids are ignored, samples that share
        one are all kept. To find them by another name than the number of the sample, all samples are read once. Raises
        ValueError if the source has no such feature.
        """
        fetch, numbers = self._fetch, self.source_split.split[default_sample_uid_name].tolist()
        wanted = list(uids)
        if numbers and (uids_name != default_sample_uid_name or fetch.has_uids(numbers[0])):
            found = [fetch.feature(number, uids_name)[0] for number in numbers]
            wanted = [numbers[row] for row in rows_with({uids_name: found}, uids_name, wanted)]
        return super().subsample_uids(wanted, default_sample_uid_name, new_sampler)

    def describe_stage(self) -> str:
        """Returns this stage as one line."""
        return f"dataset({self._lender.name}, {self._lender.workers}; state: by index)"
