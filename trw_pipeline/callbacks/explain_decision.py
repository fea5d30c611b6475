"""Why the model said so, in pictures of some samples."""

from __future__ import annotations

import functools
import logging
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from trw_pipeline.batches.device import to_value
from trw_pipeline.batches.length import holds_samples, len_batch
from trw_pipeline.errors import ExplanationError, MissingExtraError
from trw_pipeline.explain.algorithms import ExplainableAlgorithm, default_algorithm_args, explain
from trw_pipeline.explain.guided_backprop import GuidedBackprop
from trw_pipeline.explain.inputs import DEFAULT_INPUT
from trw_pipeline.explain.score import default_output_name, ranked_classes
from trw_pipeline.nets.mode import looked_at
from trw_pipeline.nets.reflection import find_last_forward_convolution
from trw_pipeline.nets.upsample import upsample
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.output import Output
from trw_pipeline.outputs.segmentation import OutputSegmentation
from trw_pipeline.reporting.explanation import export_explanation, with_channels
from trw_pipeline.training.callback import Callback, create_hook_table, with_batch_callbacks
from trw_pipeline.training.class_names import class_names_of
from trw_pipeline.training.history import History
from trw_pipeline.training.looking import beside, can_be_read_again, split_to_look_at
from trw_pipeline.training.options import Options
from trw_pipeline.training.run import Run
from trw_pipeline.training.split import one_split
from trw_pipeline.typing import Batch, Datasets

_logger = logging.getLogger(__name__)

_MASK_POINTS = 14
"""Along the shortest side of an image, at the least, a mask has so many points, whatever the usual reduction by 8."""

_MOST_POINTS = 3_000_000
"""Points of inputs that go through the model for one explanation of a batch, about: 382 times those of 10 digits."""

_FEWEST_PASSES = 20
"""However large the inputs are. With fewer, a mask and an integral are too coarse."""

_LONGEST_NAME = 60
"""Characters of the name of a class."""


class CallbackExplainDecision(Callback):
    """Draws, for some samples, which parts of the inputs made the model say what it said.

    Writes `<run folder>/<dirname>/<dataset>_<split>_s<sample>_<output>_<algorithm>_<input>_k<rank>.png`, each name
    without special characters: samples are counted from 0 in the order of the split, and rank 0 is the class that the
    model finds, 1 the next one. Each picture has the input, the explanation and both over each other, and says what the
    model said, what is true, and which class is explained. Volumes are shown by their middle slices, signals and
    vectors as curves. In a segmentation, the score of a class is that of all points where it is found, and the
    background is explained only where nothing else is found.

    The split is read once more beside the training, up to the samples that are wanted; the model is in evaluation mode
    meanwhile. Explained are the features of real numbers on which the output depends: those with at least three axes,
    or if there are none, those with two. An algorithm that does not fit the model (Grad-CAM without a convolution,
    guided back-propagation without ReLUs), or whose library is not installed, is left out with a warning. Called each
    epoch, it writes over the pictures of the epoch before. Of a split that can be read only once nothing is explained.

    Args:
        max_samples: how many samples are explained, at least 1.
        dirname: folder of the pictures, in the run folder.
        dataset_name: name of the dataset. None: the first.
        split_name: name of the split. None: the first that is not trained on, if there is one.
        algorithm: one `ExplainableAlgorithm`, or several.
        output_name: name of the output. None: the first `OutputClassification`, else the first `OutputSegmentation`,
            else the only one; if there are others, none is explained, and a warning says so.
        nb_explanations: how many classes are explained for each sample, at least 1.
        algorithms_kwargs: algorithm -> keyword arguments of its explainer. None: `default_algorithm_args()`. Where they
            do not say otherwise, a mask has at least 14 points along an image; large inputs, such as volumes, go
            through the model fewer times, but at least 20, for a mask and an integral; and Grad-CAM of a segmentation
            looks at the last convolution but one, because the last is the output itself.
        average_filters: show the mean of an explanation over the channels; else each channel by itself, up to 8.

    Raises:
        ValueError: a number is out of range; or, when it is called, there is no such dataset, split or output.
        TypeError: `algorithm` holds something else.
    """

    def __init__(
        self,
        max_samples: int = 10,
        dirname: str = "explained",
        dataset_name: str | None = None,
        split_name: str | None = None,
        algorithm: ExplainableAlgorithm | Sequence[ExplainableAlgorithm] = (
            ExplainableAlgorithm.MeaningfulPerturbations,
            ExplainableAlgorithm.GuidedBackPropagation,
            ExplainableAlgorithm.GradCAM,
            ExplainableAlgorithm.Gradient,
            ExplainableAlgorithm.IntegratedGradients,
        ),
        output_name: str | None = None,
        nb_explanations: int = 1,
        algorithms_kwargs: Mapping[ExplainableAlgorithm, Mapping[str, Any]] | None = None,
        average_filters: bool = True,
    ) -> None:
        for name, value in (("max_samples", max_samples), ("nb_explanations", nb_explanations)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        algorithms = [algorithm] if isinstance(algorithm, ExplainableAlgorithm) else list(algorithm)
        for one in cast("list[Any]", algorithms):
            if not isinstance(one, ExplainableAlgorithm):
                raise TypeError(f"algorithm must be ExplainableAlgorithm, one or several, got {one!r}")
        self.max_samples = max_samples
        self.dirname = dirname
        self.dataset_name = dataset_name
        self.split_name = split_name
        self.algorithms = algorithms
        self.output_name = output_name
        self.nb_explanations = nb_explanations
        self.algorithms_kwargs = default_algorithm_args() if algorithms_kwargs is None else algorithms_kwargs
        self.average_filters = average_filters

    def first_time(self, datasets: Datasets, options: Options) -> tuple[str, str]:
        """Choose the split whose samples are explained.

        Args:
            datasets: dataset name -> split name -> split.
            options: name the split that is trained on.

        Returns:
            Name of the dataset, name of the split.

        Raises:
            ValueError: there is no such dataset or split.
        """
        train_split = options["workflow_options"]["train_split"]
        return split_to_look_at(datasets, self.dataset_name, self.split_name, train_split)

    @staticmethod
    def find_output_name(outputs: Mapping[str, Any], name: str | None) -> str:
        """Choose the output that is explained.

        Args:
            outputs: what a model gave: output name -> `Output`.
            name: what was asked for, or None.

        Returns:
            That; else the first `OutputClassification`, else the first `OutputSegmentation`, else the only one.

        Raises:
            ValueError: it is not there, or there is nothing to choose.
        """
        if name is not None and name not in outputs:
            raise ValueError(f"the output must be one of {list(outputs)}, got {name!r}")
        return default_output_name(outputs) if name is None else name

    def __call__(
        self,
        options: Options,
        history: History,
        model: nn.Module,
        losses: Any,
        outputs: Any,
        datasets: Any,
        datasets_infos: Any,
        callbacks_per_batch: Any,
        **kwargs: Any,
    ) -> None:
        """Explain some samples.

        Args:
            options: has the run folder and the device.
            history: not used.
            model: is explained.
            losses: not used.
            outputs: not used.
            datasets: has the split.
            datasets_infos: has the names of the classes.
            callbacks_per_batch: see the batches before the model does.
            **kwargs: not used.
        """
        workflow = options["workflow_options"]
        dataset_name, split_name = self.first_time(datasets, options)
        if not can_be_read_again(datasets[dataset_name][split_name], f"{dataset_name}/{split_name}"):
            return
        folder = Path(workflow["current_logging_directory"]) / self.dirname
        folder.mkdir(exist_ok=True)
        class_names = class_names_of(datasets_infos, dataset_name, split_name)
        gallery = _Gallery(self, model, folder, f"{dataset_name}_{split_name}", class_names)
        run = Run(
            model,
            torch.device(workflow["device"]),
            hooks=with_batch_callbacks(create_hook_table(), callbacks_per_batch or [], None),
            dataset=dataset_name,
            split=split_name,
        )
        with looked_at(model), beside(datasets[dataset_name][split_name]) as split:
            one_split(run, split, gallery.add)


@dataclass
class _Gallery:
    """The pictures of one call of the callback."""

    callback: CallbackExplainDecision
    model: nn.Module
    folder: Path
    prefix: str
    class_names: Mapping[str, Mapping[int, str]]
    nb_samples: int = 0
    left_out: set[ExplainableAlgorithm] = field(default_factory=set["ExplainableAlgorithm"])

    def add(self, run: Run) -> None:
        """Explains the samples of a batch that are still wanted, and ends the split after the last of them."""
        wanted = self.callback.max_samples - self.nb_samples
        run.split_stopped = len_batch(run.batch) >= wanted
        try:
            batch = _first_samples(run.batch, wanted)
            outputs = self.model(dict(batch))
        except Exception as error:
            if len_batch(run.batch) <= wanted:
                raise
            # It has judged whole batches, such as the nodes of a graph, and may not be able to judge a part of one.
            _logger.warning("nothing to explain: the first %d samples of a batch can not be judged: %s", wanted, error)
            _logger.debug("nothing to explain", exc_info=True)
            return
        try:
            name = self.callback.find_output_name(outputs, self.callback.output_name)
        except ValueError as error:
            if self.callback.output_name is not None:
                raise
            _logger.warning("nothing to explain: %s", error)
            run.split_stopped = True
            return
        said = _Said(name, outputs[name], batch, self.class_names)
        explained = _inputs_to_explain(self.model, batch, name)
        if not explained:
            _logger.warning("nothing to explain: %r depends on no feature of real numbers of the batch", name)
        for rank in range(min(self.callback.nb_explanations, said.ranks.shape[1]) if explained else 0):
            for algorithm in self.callback.algorithms:
                self._draw(algorithm, rank, batch, explained, said)
        self.nb_samples += len(said.ranks)

    def _draw(
        self,
        algorithm: ExplainableAlgorithm,
        rank: int,
        batch: Batch,
        explained: Mapping[str, torch.Tensor],
        said: _Said,
    ) -> None:
        if algorithm in self.left_out:
            return
        arguments = {**_own_arguments(algorithm, explained, said), **self.callback.algorithms_kwargs.get(algorithm, {})}
        classes = torch.from_numpy(said.ranks[:, rank])
        try:
            _, found = explain(algorithm, self.model, {**batch, **explained}, said.name, classes, **arguments)
        except (ExplanationError, MissingExtraError) as error:
            self.left_out.add(algorithm)
            _logger.warning("no explanation by %s: %s", algorithm.value, error)
            return
        for key, values in explained.items():
            # Grad-CAM has one for all inputs, meaningful perturbation none for vectors.
            relevances = found.get(key, found.get(DEFAULT_INPUT))
            if relevances is not None:
                for index, sample in enumerate(to_value(values)):
                    self._export(algorithm, rank, key, index, sample, relevances[index], said)

    def _export(
        self,
        algorithm: ExplainableAlgorithm,
        rank: int,
        key: str,
        index: int,
        sample: np.ndarray,
        relevance: np.ndarray,
        said: _Said,
    ) -> None:
        sample = with_channels(sample)
        fitted = _fitted(relevance, sample)
        if fitted is None:
            return
        number = self.nb_samples + index
        name = f"{self.prefix}_s{number}_{said.name}_{algorithm.name}_{key}_k{rank}"
        title = f"{self.prefix}, sample {said.uid(index, number)}: {key}\n{said.text(index)}\n"
        title += f"{algorithm.value}: {said.question(index, rank)}"
        export_explanation(self.folder, name.replace(" ", "_"), sample, fitted, title, self.callback.average_filters)


class _Said:
    """What the model said of a batch, and what is true."""

    def __init__(self, name: str, head: Output, batch: Batch, class_names: Mapping[str, Mapping[int, str]]) -> None:
        raw = head.output.detach()
        raw = raw.unsqueeze(1) if raw.dim() == 1 else raw
        target_name = getattr(head, "target_name", "")
        self.name = name
        self.head = head
        self.raw: np.ndarray = to_value(raw)
        self.ranks: np.ndarray = to_value(ranked_classes(raw))
        self.probabilities: np.ndarray = to_value(raw.softmax(1))
        self.has_classes = isinstance(head, (OutputClassification, OutputSegmentation))
        self.found: Any = to_value(cast("Any", head).output_postprocessing(head.output)) if self.has_classes else None
        self.truth: Any = to_value(batch.get(target_name))
        self.names = class_names.get(target_name, {})
        self.uids: Any = to_value(batch.get(head.sample_uid_name or ""))

    def class_name(self, index: int) -> str:
        return textwrap.shorten(str(self.names.get(int(index), int(index))), _LONGEST_NAME, placeholder=" ...")

    def question(self, index: int, rank: int) -> str:
        """Gives what is explained of a sample."""
        if self.raw.shape[1] == 1:
            return "why this score?"
        explained = self.ranks[index, rank]
        return f"why {self.class_name(explained)}?" if self.has_classes else f"why this value {explained}?"

    def uid(self, index: int, number: int) -> str:
        return str(number if self.uids is None else self.uids[index])

    def text(self, index: int) -> str:
        """Gives what was said of a sample, and what is true, in a line."""
        truth = None if self.truth is None else self.truth[index]
        if isinstance(self.head, OutputClassification):
            found = int(self.found[index])
            sure = f" ({self.probabilities[index, found]:.0%})" if self.raw.shape[1] > 1 else ""
            said = self.class_name(found) + sure
            true = None if truth is None else self.class_name(truth)
        elif isinstance(self.head, OutputSegmentation):
            largest, found = self.ranks[index, 0], self.found[index]
            said = f"{self.class_name(largest)} at {(found == largest).sum()} of {found.size} points"
            true = None if truth is None else f"at {(truth == largest).sum()}"
        else:
            said = _first_numbers(self.raw[index])
            true = None if truth is None else _first_numbers(truth)
        return f"{self.name}: said {said}" + ("" if true is None else f", true is {true}")


def _first_numbers(values: Any) -> str:
    numbers = np.ravel(values)
    return " ".join(f"{number:.4g}" for number in numbers[:8]) + (" ..." if len(numbers) > 8 else "")


def _first_samples(batch: Batch, nb_samples: int) -> dict[str, Any]:
    length = len_batch(batch)
    return {
        name: value[:nb_samples] if holds_samples(value) and len(value) == length else value
        for name, value in batch.items()
    }


def _inputs_to_explain(model: nn.Module, batch: Batch, output_name: str) -> dict[str, torch.Tensor]:
    """The features that are explained, which require gradients: see the callback."""
    length = len_batch(batch)
    candidates = {
        name: value.detach().requires_grad_()
        for name, value in batch.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point() and 2 <= value.dim() <= 5
    }
    candidates = {name: value for name, value in candidates.items() if len(value) == length}
    if not candidates:
        return {}
    explain_slopes = GuidedBackprop(model, unguided_gradient=True)
    _, slopes = explain_slopes({**batch, **candidates}, target_class_name=output_name)
    depends = {name: value for name, value in candidates.items() if slopes[name].any()}
    return {name: value for name, value in depends.items() if value.dim() > 2} or depends


def _own_arguments(
    algorithm: ExplainableAlgorithm, explained: Mapping[str, torch.Tensor], said: _Said
) -> dict[str, Any]:
    """What we ask of an explainer where the user asks for nothing else."""
    is_segmentation = isinstance(said.head, OutputSegmentation)
    if algorithm is ExplainableAlgorithm.GradCAM and is_segmentation:
        return {"find_convolution": functools.partial(find_last_forward_convolution, relative_index=1)}
    most_passes = max(_FEWEST_PASSES, _MOST_POINTS // sum(value.numel() for value in explained.values()))
    if algorithm is ExplainableAlgorithm.IntegratedGradients:
        return {"steps": min(100, most_passes)}
    if algorithm is not ExplainableAlgorithm.MeaningfulPerturbations:
        return {}
    shortest = min((side for value in explained.values() for side in value.shape[2:]), default=1)
    arguments: dict[str, Any] = {
        "iterations": min(150, most_passes),
        "mask_reduction_factor": min(8.0, max(1.0, shortest / _MASK_POINTS)),
    }
    if said.raw.shape[1] == 1:  # no classes to share a probability
        arguments["model_output_postprocessing"] = nn.Identity()
    return arguments


def _fitted(relevance: np.ndarray, sample: np.ndarray) -> np.ndarray | None:
    """The relevance in the size of the sample; None if it can not be laid over it."""
    relevance = relevance if relevance.ndim == sample.ndim else relevance[np.newaxis]
    if relevance.ndim != sample.ndim:
        return None
    if relevance.shape[1:] == sample.shape[1:]:
        return relevance
    tensor = torch.from_numpy(np.ascontiguousarray(relevance, dtype=np.float32))[None]
    return upsample(tensor, sample.shape[1:])[0].numpy()
