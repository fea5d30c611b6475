"""What a training measured, and how the batches of a split become one set of figures.

    history[epoch][dataset][split][output][metric] -> float

Every split with samples has the output `overall_loss` with the metric `loss`, the mean of what was optimised over the
samples that heads have judged (of several heads, in each batch, the one that judged most); NaN if none was. Every split
that ran has `info`:

| metric | meaning |
|---|---|
| `nb_samples` | samples of the split |
| `time_s` | wall time of the split in seconds, its evaluation included |
| `samples_per_s` | `nb_samples / time_s` |
| `wait_s` | seconds of it that the loop waited for data: inside `iter(split)` and `next` |
| `wait_share` | `wait_s / time_s`, in [0, 1] |

`CallbackResourceMonitor` adds the output `resources`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from trw_pipeline.outputs.output import LossTerm, Output
from trw_pipeline.training.gathering import Gatherer, gatherer_for, number_on_host, read_each, to_host
from trw_pipeline.training.options import Options

SplitHistory: TypeAlias = dict[str, dict[str, float]]
"""Output -> metric -> value."""

EpochHistory: TypeAlias = dict[str, dict[str, SplitHistory]]
"""Dataset -> split -> output -> metric -> value."""

History: TypeAlias = list[EpochHistory]
"""One entry for each epoch, from 0; after a training, one more for the final evaluation."""

SplitOutputs: TypeAlias = dict[str, LossTerm]
"""Output -> the loss terms of a split as one, on the host: see `Output`."""

EpochOutputs: TypeAlias = dict[str, dict[str, SplitOutputs]]
"""Dataset -> split -> output -> the loss terms of the split as one."""

OVERALL_LOSS = "overall_loss"
INFO = "info"
RESOURCES = "resources"  # of `CallbackResourceMonitor`


class SplitMeter:
    """Gathers the loss terms of one split on their device, and reads them once, at the end.

    Whatever the number of batches, numbers and counts take the same memory; tensors of samples take theirs, in one
    growing tensor for each value. No tensor in here has a graph.
    """

    def __init__(self) -> None:
        self.nb_samples = 0
        self._loss = gatherer_for(0.0, OVERALL_LOSS)
        self._terms: dict[str, dict[str, Gatherer]] = {}
        self._pending: dict[str, Any] = {}  # output -> states of values that have not come yet
        self._figures: SplitHistory = {}  # when it was saved: for outputs of which no batch has more to say

    def add(
        self,
        terms: Mapping[str, LossTerm],
        loss: torch.Tensor | float,
        nb_samples: int,
        number: torch.Tensor | float | None = None,
        nb_judged: float | torch.Tensor | None = None,
    ) -> None:
        """Take in one batch, without reading a value from the device.

        Args:
            terms: output -> its loss term of this batch.
            loss: what was optimised, a tensor without dimensions or a number.
            nb_samples: samples in the batch, at least 1.
            number: what `number_on_host` gave for `loss`, if it was asked: most heads have that loss in their term too,
                and it need not be read again.
            nb_judged: samples that the loss is a mean over; None: all of the batch.

        Raises:
            ValueError: an output has a reserved name, or its rows do not fit those of the batches before.
        """
        self.nb_samples += nb_samples
        number = number_on_host(loss) if number is None else number
        self._loss.add(number, nb_samples if nb_judged is None else nb_judged)
        for output, term in terms.items():
            gatherers = self._terms.get(output)
            if gatherers is None:
                if output in (OVERALL_LOSS, INFO, RESOURCES):
                    raise ValueError(f"an output must not be called {output!r}: the history uses the name itself")
                gatherers = self._terms[output] = {}
            head: Output | None = term.get(Output.output_ref_tag)
            fleeting = () if head is None else head.fleeting
            loss_weight = term.get("nb_judged", nb_samples)
            for name, value in term.items():
                if name in fleeting:
                    continue
                gatherer = gatherers.get(name)
                if gatherer is None:
                    gatherer = gatherers[name] = gatherer_for(value, f"{output!r}/{name!r}")
                    if name in self._pending.get(output, ()):
                        gatherer.load(self._pending[output].pop(name), value)
                gatherer.add(number if value is loss else value, loss_weight if name == "loss" else nb_samples)

    def read(self) -> tuple[SplitOutputs, SplitHistory]:
        """Read the split.

        Returns:
            The loss terms as one (with `overall_loss`, whose value is `loss`), and what the heads make of them. Both
            are empty if there was no batch.

        Raises:
            TypeError: a head gave a metric that is not a number.
        """
        if not self.nb_samples:
            return {}, {}
        outputs = self._read_terms()
        history: SplitHistory = {name: figures for name, figures in self._figures.items() if name != OVERALL_LOSS}
        for output, term in outputs.items():
            head: Output | None = term.get(Output.output_ref_tag)
            try:
                figures = {} if head is None else head.extract_history(term)
            except Exception as error:
                error.add_note(f"raised by the head {output!r}")
                raise
            if figures:
                history[output] = {metric: _number(output, metric, value) for metric, value in figures.items()}
        return outputs, history | {OVERALL_LOSS: dict(outputs[OVERALL_LOSS])}

    def state_dict(self) -> dict[str, Any]:
        """Give what was gathered so far, for a checkpoint, and the figures so far, which only heads can compute.

        Raises:
            TypeError: a metric can not tell its state.
        """
        terms = {output: dict(states) for output, states in self._pending.items()}
        for output, gatherers in self._terms.items():
            terms.setdefault(output, {}).update({name: gatherer.state() for name, gatherer in gatherers.items()})
        return {
            "nb_samples": self.nb_samples,
            "loss": self._loss.state(),
            "terms": terms,
            "figures": self.read()[1],
        }

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Take it back into a new meter; the losses to come are on `device`."""
        self.nb_samples = state["nb_samples"]
        self._loss.load(state["loss"], torch.empty(0, device=device))
        self._pending = {output: dict(values) for output, values in state["terms"].items()}
        self._figures = state["figures"]

    def _read_terms(self) -> SplitOutputs:
        terms = self._terms | {OVERALL_LOSS: {"loss": self._loss}}
        gatherers = [gatherer for term in terms.values() for gatherer in term.values()]
        arrays = iter(to_host([tensor for gatherer in gatherers for tensor in gatherer.small()]))
        return {output: read_each(term, arrays) for output, term in terms.items()}


def split_info(nb_samples: int, time_s: float, wait_s: float) -> dict[str, float]:
    """Make the output `info` of a split.

    Args:
        nb_samples: samples of the split.
        time_s: wall time of the split in seconds.
        wait_s: seconds of it spent waiting for batches.

    Returns:
        The five metrics of the table above; the two ratios are 0 when no time passed.
    """
    return {
        "nb_samples": float(nb_samples),
        "time_s": time_s,
        "samples_per_s": nb_samples / time_s if time_s > 0 else 0.0,
        "wait_s": wait_s,
        "wait_share": min(wait_s / time_s, 1.0) if time_s > 0 else 0.0,
    }


def metric_at(epoch: EpochHistory, path: tuple[str, str, str, str], has_all_splits: bool = False) -> float | None:
    """Find a metric of an epoch.

    Args:
        epoch: one entry of the history.
        path: (dataset, split, output, metric).
        has_all_splits: whether all splits ran in the epoch, as they do in the first one. Then the metric must be there:
            somebody waits for it who would else wait for ever.

    Returns:
        Its value; None where the epoch has it not, because that split was not evaluated.

    Raises:
        ValueError: it must be there, and is not; the message says what is.
    """
    dataset, split, output, metric = path
    value = epoch.get(dataset, {}).get(split, {}).get(output, {}).get(metric)
    if value is None and has_all_splits:
        raise ValueError(f"the history has no metric {path}, it has {sorted(_paths(epoch))}")
    return value


def epochs_of(history: History, options: Options) -> History:
    """Leave the final evaluation, which is no epoch, out of a history.

    Args:
        history: one entry for each epoch, and one more after the final evaluation.
        options: have the number of epochs.

    Returns:
        The entries of epochs; if there is only one entry, that one.
    """
    return history[: options["training_parameters"]["num_epochs"]] if len(history) > 1 else history


def curves_of(history: History) -> dict[tuple[str, str, str], dict[str, list[tuple[int, float]]]]:
    """Give each metric over the epochs.

    Args:
        history: its entries are epochs, from 0.

    Returns:
        (dataset, output, metric) -> split -> points (epoch, value), without the epochs that have none.
    """
    curves: dict[tuple[str, str, str], dict[str, list[tuple[int, float]]]] = {}
    for epoch, datasets in enumerate(history):
        for dataset, splits in datasets.items():
            for split, outputs in splits.items():
                for output, metrics in outputs.items():
                    for metric, value in metrics.items():
                        plot = curves.setdefault((dataset, output, metric), {})
                        plot.setdefault(split, []).append((epoch, value))
    return curves


def _paths(epoch: EpochHistory) -> list[tuple[str, str, str, str]]:
    return [
        (dataset, split, output, metric)
        for dataset, splits in epoch.items()
        for split, outputs in splits.items()
        for output, metrics in outputs.items()
        for metric in metrics
    ]


def _number(output: str, metric: str, value: Any) -> float:
    is_scalar = isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim == 0
    if not is_scalar and not isinstance(value, (int, float, np.number)):
        raise TypeError(f"the metric {metric!r} of {output!r} must be a number, got {type(value).__name__}")
    return float(value)
