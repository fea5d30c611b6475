"""What every head promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import torch

from trw_pipeline.typing import Batch

LossTerm: TypeAlias = dict[str, Any]
"""What a head says of one batch: feature name -> value. What each kind of value becomes over a split: see `Output`."""

Criterion: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(output, target) -> losses, one or more for each sample: `(N,)` or `(N, ...)`."""

Summand: TypeAlias = torch.Tensor | int | float


class Totals(dict[Any, Summand]):
    """Counts and sums of one batch, in a loss term: over batches they are added, key by key."""


class Output(ABC):
    """A head: holds one tensor of the model and judges it against the batch that made it.

    A model returns a new head at each forward pass, so a head keeps no figures from one batch to the next; the training
    loop gathers its loss terms. Over a split

    - tensors and arrays of shape `(N, ...)` are concatenated along the samples, lists are chained,
    - numbers and tensors without dimensions are averaged, each weighted by the number of samples of its batch,
    - `Totals` are added,
    - of anything else, the head itself included, the value of the first batch is kept.

    Tensors stay on their device until the split is over, and reach `extract_history` as `numpy` arrays and floats.

    Args:
        output: `(N, ...)`, what the model computed, with its graph.
        criterion_fn: called without arguments, gives the criterion; or None for a head without one.
        collect_output: whether outputs are kept for the whole split. They cost memory: all samples of the split.
        sample_uid_name: feature of the batch that identifies its samples, or None.
    """

    output_ref_tag: ClassVar[str] = "output_ref"
    """Name of the value of a loss term that is the head itself."""

    def __init__(
        self,
        output: torch.Tensor,
        criterion_fn: Callable[[], Criterion] | None,
        collect_output: bool = False,
        sample_uid_name: str | None = None,
    ) -> None:
        self.output: torch.Tensor | None = output
        self.criterion_fn = criterion_fn
        self.collect_output = collect_output
        self.sample_uid_name = sample_uid_name

    @abstractmethod
    def evaluate_batch(self, batch: Batch, is_training: bool) -> LossTerm | None:
        """Judge the output of one batch.

        Args:
            batch: the batch the model saw, on the device of the output.
            is_training: whether the batch is trained on.

        Returns:
            The loss term, or None if this head has nothing to say of this batch. Its value `loss` is what is optimised:
            a tensor without dimensions, with its graph. A term without one is not optimised. All other tensors are
            detached. Nothing in here reads a value on the host: that would stop the device at every batch.
        """

    def loss_term_cleanup(self, loss_term: LossTerm) -> None:
        """Let go of what is not needed after the batch; called when the batch is done.

        Here: the output of the model, which holds the graph. An override calls this one too.

        Args:
            loss_term: what `evaluate_batch` returned.
        """
        self.output = None

    def extract_history(self, outputs: Mapping[str, Any]) -> dict[str, float]:
        """Sum up a split as figures for the history.

        Args:
            outputs: the loss terms of the split as one, by the rules above.

        Returns:
            Metric name -> value; here none. A figure that can not be computed is left out.
        """
        return {}
