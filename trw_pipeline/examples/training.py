"""What the commands `python -m trw_pipeline train ...` have in common: their options, a training, its run folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.callbacks.defaults import default_per_epoch_callbacks, default_post_training_callbacks
from trw_pipeline.callbacks.progress_bar import CallbackProgressBar
from trw_pipeline.errors import CheckpointError
from trw_pipeline.files import write_text
from trw_pipeline.sequences.sequence import Sequence
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.checkpoint import checkpoint_at
from trw_pipeline.training.history import EpochHistory
from trw_pipeline.training.optimizers import create_adam_optimizers_fn
from trw_pipeline.training.options import create_default_options
from trw_pipeline.training.run import Run
from trw_pipeline.typing import Backend

OPTIONS_FILE = "options.json"


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What every command takes.

    Attributes:
        epochs: passes over the training samples.
        batch_size: samples of an optimizer step.
        nb_workers: workers of a split; 0 does their work in the main process.
        backend: "process", "thread" or "inline".
        seed: of weights, dropout, order and augmentation.
        device: of the model; None is CUDA where there is one.
        output: the run folder is made in here.
        resume: folder of a run that goes on; None: a new one.
    """

    epochs: int
    batch_size: int
    nb_workers: int = 2
    backend: Backend = "process"
    seed: int = 0
    device: str | None = None
    output: Path = Path("runs")
    resume: Path | None = None


@dataclass(frozen=True)
class TrainResult:
    """What came out.

    Attributes:
        figures: name -> value, on the test samples.
        run_folder: where the log, the plots and the model are.
    """

    figures: Mapping[str, float]
    run_folder: Path


def check_options(options: TrainOptions) -> None:
    """Finds what would fail later.

    Raises:
        ValueError: there is no such device; the folder for the output can not be made; there is nothing to resume.
    """
    if options.device is not None:
        try:
            torch.empty(1, device=options.device)
        except (AssertionError, NotImplementedError, RuntimeError) as error:  # torch has all three for this
            first_line = str(error).partition("\n")[0]
            raise ValueError(
                f"device must be one that torch can use here, got {options.device!r}: {first_line}"
            ) from error
    if options.resume is not None:
        try:
            checkpoint_at(options.resume, options.epochs)
        except (CheckpointError, FileNotFoundError) as error:
            raise ValueError(f"resume must be a run that can go on: {error}") from error
        return
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"output must be a folder that can be made, got {options.output}: {error}") from error


def saved_options(run_folder: Path, example: str) -> dict[str, Any]:
    """Gives the options that a run was begun with, but for `output` and `resume`.

    Args:
        run_folder: of the run.
        example: name of the command.

    Raises:
        ValueError: it is no run of this command.
    """
    try:
        saved = json.loads((run_folder / OPTIONS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"resume must be the folder of a run of train {example}, got {run_folder}: {error}") from error
    if saved["example"] != example:
        raise ValueError(f"resume must be a run of train {example}, got one of train {saved['example']}: {run_folder}")
    return saved["options"]


class _TellFolder(Callback):
    """Says where the run folder is as soon as there is one, and keeps the options there, for who resumes the run."""

    def __init__(self, example: str, options: TrainOptions, show: Callable[[str], None]) -> None:
        self._example = example
        self._options = options
        self._show = show

    def on_fit_start(self, run: Run) -> None:
        assert run.log_dir is not None, "a training in a folder"
        options = {name: value for name, value in asdict(self._options).items() if name not in ("output", "resume")}
        write_text(run.log_dir / OPTIONS_FILE, json.dumps({"example": self._example, "options": options}, indent=1))
        self._show(f"run folder: {run.log_dir}")


def train(
    example: str,
    options: TrainOptions,
    make_splits: Callable[[], Mapping[str, Sequence]],
    make_model: Callable[[], nn.Module],
    learning_rate: float,
    show: Callable[[str], None],
    class_names: Mapping[str, Iterable[str]] | None = None,
    explained_split: str | None = None,
) -> tuple[EpochHistory, Path]:
    """Trains by Adam, with a checkpoint after each epoch, and evaluates at the end.

    Args:
        example: name of the command, of the dataset, and first part of that of the run folder.
        options: what to do.
        make_splits: gives the chains of "train" and of what is evaluated; they are closed at the end.
        make_model: gives the model.
        learning_rate: of Adam.
        show: takes the path of the run folder, and the table of each epoch, as text.
        class_names: feature with classes -> their names, from class 0 on; for pictures and reports. None: none has any.
        explained_split: split whose samples are explained at the end. None: the first that is not trained on.

    Returns:
        What the final evaluation measured, and the run folder.

    Raises:
        ValueError: see `check_options`.
    """
    check_options(options)
    torch.manual_seed(options.seed)
    # On a CPU the workers need the other cores, and torch's threads would spin while they wait for one (three times the
    # CPU seconds on two cores). The numbers do not depend on the number of cores this way, either.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    splits = make_splits()
    mappings = {feature: _mapping(list(names)) for feature, names in (class_names or {}).items()}
    trainer = Trainer(
        callbacks_per_epoch_fn=lambda: [
            _TellFolder(example, options, show),
            CallbackProgressBar(),
            *default_per_epoch_callbacks(show),
            CallbackCheckpoint(),
        ],
        callbacks_post_training_fn=lambda: default_post_training_callbacks(split_name=explained_split),
    )
    try:
        _, result = trainer.fit(
            create_default_options(str(options.output), options.epochs, options.device),
            inputs_fn=lambda: ({example: splits}, {example: {name: {"output_mappings": mappings} for name in splits}}),
            model_fn=lambda _: make_model(),
            optimizers_fn=partial(create_adam_optimizers_fn, learning_rate=learning_rate),
            run_prefix=example,
            resume=options.resume,
        )
    finally:
        torch.set_num_threads(threads)
        for split in splits.values():
            split.close()
    return result["history"][-1], Path(result["options"]["workflow_options"]["current_logging_directory"])


def _mapping(names: list[str]) -> dict[str, Any]:
    return {"mapping": {name: number for number, name in enumerate(names)}, "mappinginv": dict(enumerate(names))}
