"""What every head promises."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import torch

from trw_pipeline.typing import Batch

LossTerm: TypeAlias = dict[str, Any]
"""What a head says of one batch: feature name -> value. What each kind of value becomes over a split: see `Output`."""

Criterion: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(output, target) -> losses, one or more for each sample: `(N,)` or `(N, ...)`."""


class StatefulMetric(Protocol):
    """What sees a split batch by batch and keeps what it needs: any metric of torchmetrics, among others."""

    def update(self, *inputs: Any) -> Any:
        """Take in one batch."""
        ...

    def compute(self) -> Any:
        """Give the figures of all batches since the last reset: a number, a tensor, or a mapping of them by name."""
        ...

    def reset(self) -> Any:
        """Forget all batches."""
        ...


class Rows(NamedTuple):
    """Values of the samples of one batch that a figure of the split needs one by one."""

    values: torch.Tensor
    """`(N, ...)`, detached."""


class Update(NamedTuple):
    """What one batch tells a metric that keeps a state of its own."""

    metric: StatefulMetric
    inputs: tuple[torch.Tensor, ...]
    """Detached, and on one device."""

    def new_metric(self) -> StatefulMetric:
        """Copy the metric for one split: empty, and on the device of the inputs. The original is never updated."""
        metric = copy.deepcopy(self.metric)
        metric.reset()
        move = getattr(metric, "to", None)
        return metric if move is None else move(self.inputs[0].device)


Summand: TypeAlias = torch.Tensor | int | float | Rows | Update


class Totals(dict[Any, Summand]):
    """What the figures of a split are computed from, of one batch, in a loss term. Over batches, key by key,

    - numbers and tensors are added,
    - `Rows` are concatenated,
    - `Update`s go to one metric, that of the first batch, copied; its `compute()` is the value of the split.
    """


class Output(ABC):
    """A head: holds one tensor of the model and judges it against the batch that made it.

    A model returns a new head at each forward pass, so a head keeps no figures from one batch to the next; the training
    loop gathers its loss terms. Over a split

    - tensors and arrays of shape `(N, ...)` are concatenated along the samples, lists are chained,
    - numbers and tensors without dimensions are averaged, each weighted by the number of samples of its batch; `loss`
      by `nb_judged`, if the term has it, the samples that it is a mean over: a number, or a tensor without dimensions,
    - `Totals` become those of the split, as they say,
    - of anything else, the head itself included, the value of the first batch is kept,
    - what is `fleeting` is not gathered.

    Tensors stay on their device until the split is over, and reach `extract_history` as `numpy` arrays and floats.

    Attributes:
        output: what the model computed; None once the batch is done.
        fleeting: names of the values of a loss term that end with their batch.

    Args:
        output: `(N, ...)`, what the model computed, with its graph.
        criterion_fn: called without arguments, gives the criterion; or None for a head without one.
        collect_output: whether outputs are kept for the whole split. They cost memory: all samples of the split.
        sample_uid_name: feature of the batch that identifies its samples, or None.
    """

    output_ref_tag: ClassVar[str] = "output_ref"
    """Name of the value of a loss term that is the head itself."""

    fleeting: Collection[str] = ()

    def __init__(
        self,
        output: Any,
        criterion_fn: Callable[[], Criterion] | None,
        collect_output: bool = False,
        sample_uid_name: str | None = None,
    ) -> None:
        self.output: Any = output
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

        Here: the output of the model, which holds the graph, and what is fleeting. An override calls this one too.

        Args:
            loss_term: what `evaluate_batch` returned.
        """
        self.output = None
        for name in self.fleeting:
            loss_term.pop(name, None)

    def extract_history(self, outputs: Mapping[str, Any]) -> dict[str, float]:
        """Sum up a split as figures for the history.

        Args:
            outputs: the loss terms of the split as one, by the rules above.

        Returns:
            Metric name -> value; here none. A figure that can not be computed is left out.
        """
        return {}

    def _unjudged(self) -> Any:
        """The output of the model, if it is still there.

        Raises:
            RuntimeError: it is gone.
        """
        if self.output is None:
            raise RuntimeError("a head judges one batch: its output is gone once that batch is done")
        return self.output

    def _term(self, batch: Batch, **values: Any) -> LossTerm:
        """A loss term with these values, this head, and the uids of the samples if the batch has them."""
        term: LossTerm = {**values, self.output_ref_tag: self}
        if self.sample_uid_name is not None and self.sample_uid_name in batch:
            term["uid"] = batch[self.sample_uid_name]
        return term
