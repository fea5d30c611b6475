"""The trainer: from options and functions to a trained model, with a run folder and callbacks."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import nn

from trw_pipeline.callbacks.defaults import (
    default_per_epoch_callbacks,
    default_post_training_callbacks,
    default_pre_training_callbacks,
)
from trw_pipeline.files import create_numbered_folder
from trw_pipeline.training import prediction, saved_model
from trw_pipeline.training.arguments import (
    check_callbacks_fn,
    check_eval_every,
    check_functions,
    check_seed,
    check_something_is_trained,
    checked_inputs,
    checked_losses,
    checked_optimizers,
    created_callbacks,
)
from trw_pipeline.training.callback import BatchCallback, Callback, LossTermsCallback, create_hook_table
from trw_pipeline.training.checkpoint import Checkpoint, checkpoint_at, is_over, run_folder_of
from trw_pipeline.training.finite import NanPolicy, check_nan_policy
from trw_pipeline.training.loop import (
    EpochResult,
    create_losses_fn,
    default_sum_all_losses,
    epoch_train_eval,
    run_keyword,
    trainer_callbacks_per_batch,
)
from trw_pipeline.training.optimization import Amp, Optimization
from trw_pipeline.training.optimizers import Optimizers
from trw_pipeline.training.options import Options, check_options, copy_options
from trw_pipeline.training.randomness import seeded, split_seed
from trw_pipeline.training.resume import restore
from trw_pipeline.training.run import LossFn, OptimizersFn, Run
from trw_pipeline.training.saved_model import Result
from trw_pipeline.typing import Datasets

_logger = logging.getLogger(__name__)

CallbacksFn: TypeAlias = Callable[[], Sequence[Any]]
CALLBACKS_FNS = (
    "callbacks_per_batch_fn",
    "callbacks_per_batch_loss_terms_fn",
    "callbacks_per_epoch_fn",
    "callbacks_pre_training_fn",
    "callbacks_post_training_fn",
)
InputsFn: TypeAlias = Callable[[], "Datasets | tuple[Datasets, Mapping[str, Any]]"]
LossCreator: TypeAlias = Callable[[Datasets, LossFn], Mapping[str, LossFn]]


class Trainer:
    """Trains models. A trainer keeps nothing from one `fit` to the next.

    Every `..._fn` is called once in each `fit`, without arguments, and gives new callbacks; None stands for none.

    Args:
        callbacks_per_batch_fn: gives functions of (dataset name, split name, batch), called before the model sees the
            batch; they may edit it. StopIteration of one ends the split.
        callbacks_per_batch_loss_terms_fn: gives functions of (dataset name, split name, batch, loss terms), called when
            the batch is done. StopIteration of one ends the split.
        callbacks_per_epoch_fn: gives `Callback`s, whose hooks all run, or anything with the signature of
            `Callback.__call__`, which runs at the end of each epoch.
        callbacks_pre_training_fn: gives the same, run once before training.
        callbacks_post_training_fn: gives the same, run once after training and final evaluation.
        trainer_callbacks_per_batch: the last function that sees each batch before the model; or None.
        run_epoch_fn: called like `epoch_train_eval`, with the keyword `run` if it takes that. One that does not hand
            `run` on runs its epochs without the hooks of splits and batches.

    Raises:
        TypeError: a `callbacks_..._fn` is no function.
    """

    save_model = staticmethod(saved_model.save_model)
    load_model = staticmethod(saved_model.load_model)
    evaluate = staticmethod(prediction.evaluate)
    predict = staticmethod(prediction.predict)

    def __init__(
        self,
        callbacks_per_batch_fn: Callable[[], Sequence[BatchCallback]] | None = None,
        callbacks_per_batch_loss_terms_fn: Callable[[], Sequence[LossTermsCallback]] | None = None,
        callbacks_per_epoch_fn: CallbacksFn | None = default_per_epoch_callbacks,
        callbacks_pre_training_fn: CallbacksFn | None = default_pre_training_callbacks,
        callbacks_post_training_fn: CallbacksFn | None = default_post_training_callbacks,
        trainer_callbacks_per_batch: BatchCallback | None = trainer_callbacks_per_batch,
        run_epoch_fn: Callable[..., EpochResult] = epoch_train_eval,
    ) -> None:
        self.callbacks_per_batch_fn = callbacks_per_batch_fn
        self.callbacks_per_batch_loss_terms_fn = callbacks_per_batch_loss_terms_fn
        self.callbacks_per_epoch_fn = callbacks_per_epoch_fn
        self.callbacks_pre_training_fn = callbacks_pre_training_fn
        self.callbacks_post_training_fn = callbacks_post_training_fn
        self.trainer_callbacks_per_batch = trainer_callbacks_per_batch
        self.run_epoch_fn = run_epoch_fn
        for name in CALLBACKS_FNS:
            check_callbacks_fn(name, getattr(self, name))

    def fit(
        self,
        options: Options,
        inputs_fn: InputsFn,
        model_fn: Callable[[Options], nn.Module],
        optimizers_fn: OptimizersFn | None,
        losses_fn: LossFn = default_sum_all_losses,
        loss_creator: LossCreator = create_losses_fn,
        run_prefix: str = "default",
        with_final_evaluation: bool = True,
        eval_every_X_epoch: int = 1,
        *,
        accumulate: int = 1,
        clip_norm: float | None = None,
        amp: Amp | None = None,
        ema: float | None = None,
        nan_policy: NanPolicy = "raise",
        step: Callable[[Run], Any] | None = None,
        seed: int | None = None,
        resume: str | os.PathLike[str] | None = None,
        isolate_callbacks: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> tuple[nn.Module, Result]:
        """Train a model.

        The run gets a new folder `<logging_directory>/<run_prefix>_r<N>`, N being the first number that is free; no
        folder of an earlier run is touched. There, `trainer.txt` has what the logger `trw_pipeline` lets through: if
        logging is not configured, records of level INFO and above.

        Epochs count from 0. In each of them, every dataset's train split is trained on (one dataset must have it); the
        other splits are evaluated in epoch 0 and whenever (epoch + 1) is a multiple of `eval_every_X_epoch`. The
        outputs of one epoch that the heads collect must fit into memory.

        Datasets belong to whoever made them and are not closed; the iterators opened here are.

        Args:
            options: as `create_default_options` makes them. Not changed: the run works with a copy in which
                `workflow_options` has the number of the run (`trainer_run`) and its folder
                (`current_logging_directory`).
            inputs_fn: gives dataset name -> split name -> iterable of batches; or a pair of that and what else is known
                of the datasets: `infos[dataset][split]["output_mappings"][feature]["mappinginv"]`, class -> name, are
                the names of the classes of a target, which callbacks then show in place of numbers.
            model_fn: options -> the model: a module that maps a batch to a dict output name -> `Output`.
            optimizers_fn: (datasets, model) -> dicts of optimizers and of schedulers (or None) by dataset name, as the
                `create_..._optimizers_fn` do. None, or None for the optimizers: nothing is trained, so there are no
                epochs, only the final evaluation.
            losses_fn: (dataset name, batch, loss terms) -> what to optimise.
            loss_creator: (datasets, losses_fn) -> dataset name -> loss function.
            run_prefix: first part of the name of the run folder.
            with_final_evaluation: whether all splits, those trained on too, are evaluated after the last epoch. The
                history then has one more entry than there were epochs.
            eval_every_X_epoch: how often to evaluate, at least 1.
            accumulate: so many batches make one step; the gradient is that of one batch of all their samples, also at
                the end of a split.
            clip_norm: greatest 2-norm of the gradients of a step, or None.
            amp: mixed precision, "bf16" or "fp16" (with a gradient scaler), or None.
            ema: decay of an exponential moving average of the weights, or None. With it, evaluations are those of the
                average, and so is the model that is there after the last epoch.
            nan_policy: what becomes of a batch that is trained on whose loss is NaN or infinite: "raise"
                `NonFiniteLossError`; "skip" it, counted nowhere; "stop" the training at the end of the epoch; or
                "revert": weights, optimizers and schedulers go back to where they were when the split began, and the
                training goes on with the next batch (a copy of them is kept). Its gradients do not reach the weights,
                but on an accelerator, where only "skip" and "revert" make the device wait for the answer at every
                batch. A loss that is a number may have gradients that are none: weights are looked at when a loss is
                refused and at the end of the split, and where they are no numbers, "skip" raises too.
            step: what is done with a batch that is trained on, in place of the default, which steps all optimizers of
                the dataset with the gradients of the loss: for models whose parts have optimizers and losses of their
                own. It calls `run.backward(loss)` and `run.step(name)`, and may leave `run.terms` and `run.loss`.
            seed: of the generators of Python, NumPy and torch from here on, until they are put back as they were, and
                of every split that has `with_seed`, keyed by dataset and split. None: whatever state they are in.
            resume: a checkpoint, or the folder of a run, whose newest checkpoint that is complete is taken: the
                training goes on from there, in that folder, as if it had never stopped. A training that is finished,
                with as many epochs as the options ask for or because it was stopped before, is loaded and nothing more.
                Everything else must be given as it was; of that, what is cheap to compare is compared.
            isolate_callbacks: an error in a callback is logged, and the training goes on.
            clock: seconds that never run backwards; every time that is logged comes from it.

        Returns:
            The model, and a dict of `history` (a list of epoch -> dataset -> split -> output -> metric -> float),
            `options` (the copy), `outputs` (of the final evaluation, else None) and `datasets_infos`.

        Raises:
            ValueError, TypeError: an argument, or what a function returned, is not as described; named in the message.
            FileNotFoundError, CheckpointError: there is nothing to resume, or it does not fit.
            BaseException: whatever else ends the training, KeyboardInterrupt too: first the `on_exception` hooks run.
                The run folder stays.
        """
        check_options(options)
        check_functions(inputs_fn, model_fn, optimizers_fn, losses_fn, loss_creator)
        check_eval_every(eval_every_X_epoch)
        check_nan_policy(nan_policy)
        optimization = Optimization(accumulate, clip_norm, amp, ema)
        options = copy_options(options)
        checkpoint = None if resume is None else checkpoint_at(resume, options["training_parameters"]["num_epochs"])
        check_seed(seed, checkpoint and checkpoint[1])
        folder = _run_folder(options, run_prefix, None if checkpoint is None else checkpoint[0])
        with _logging_to(folder / "trainer.txt"), seeded(seed), ExitStack() as ours:
            _logger.info("run folder %s", folder)
            datasets, datasets_infos = checked_inputs(inputs_fn())
            datasets = _with_seeds(datasets, seed, ours)
            run = self._create_run(options, datasets, datasets_infos, model_fn, optimizers_fn)
            run.losses = checked_losses(loss_creator(datasets, losses_fn), datasets)
            run.optimization, run.training_step, run.nan_policy = optimization, step, nan_policy
            run.isolate_callbacks, run.clock, run.seed = isolate_callbacks, clock, seed
            optimization.prepare(run.model, run.device)
            if checkpoint is not None and is_over(checkpoint[1], run.epochs):
                restore(run, checkpoint[1])  # what it left
            else:
                self._train(run, with_final_evaluation, eval_every_X_epoch, checkpoint and checkpoint[1])
        return run.model, {
            "history": run.history,
            "options": run.options,
            "outputs": run.outputs,
            "datasets_infos": run.datasets_infos,
        }

    def _train(
        self, run: Run, with_final_evaluation: bool, eval_every: int, checkpoint: Checkpoint | None = None
    ) -> None:
        """Run the epochs and the final evaluation; whatever ends them before their time, every callback hears of it."""
        per_batch_terms = self._created("callbacks_per_batch_loss_terms_fn")
        try:
            run.resumed = checkpoint is not None
            run.fire("on_fit_start")
            if checkpoint is not None:
                restore(run, checkpoint)
                del run.history[run.epoch :]  # the final evaluation of a finished training that goes on: it is no epoch
            self._run_epochs(run, per_batch_terms, eval_every)
            run.take_average()
            self._run_final_evaluation(run, per_batch_terms, with_final_evaluation)
            run.fire("on_fit_end")
        except BaseException as error:
            # No more than a note in the file: the error itself goes to the caller.
            _logger.info("the training ended with an error", exc_info=True)
            run.fire_exception(error)
            raise

    def _create_run(
        self,
        options: Options,
        datasets: Datasets,
        datasets_infos: Mapping[str, Any],
        model_fn: Callable[[Options], nn.Module],
        optimizers_fn: OptimizersFn | None,
    ) -> Run:
        device = torch.device(options["workflow_options"]["device"])
        model = model_fn(options)
        if not isinstance(cast("Any", model), nn.Module):
            raise TypeError(f"model_fn must return a torch.nn.Module, got {type(model).__name__}")
        model.to(device)
        optimizers, schedulers = checked_optimizers(optimizers_fn, datasets, model)
        epochs = options["training_parameters"]["num_epochs"] if optimizers is not None else 0
        if epochs and self.run_epoch_fn is epoch_train_eval:
            check_something_is_trained(options["workflow_options"]["train_split"], optimizers, datasets)
        per_batch = self._created("callbacks_per_batch_fn")
        if self.trainer_callbacks_per_batch is not None:
            per_batch.append(self.trainer_callbacks_per_batch)
        lists = [
            self._created("callbacks_pre_training_fn"),
            self._created("callbacks_per_epoch_fn"),
            self._created("callbacks_post_training_fn"),
        ]
        return Run(
            model=model,
            device=device,
            options=options,
            datasets=datasets,
            datasets_infos=datasets_infos,
            optimizers=optimizers,
            optimizers_fn=optimizers_fn,
            schedulers=schedulers,
            callbacks_per_batch=per_batch,
            callbacks=[callback for callbacks in lists for callback in callbacks if isinstance(callback, Callback)],
            hooks=create_hook_table(*lists),
            log_dir=Path(options["workflow_options"]["current_logging_directory"]),
            epochs=epochs,
        )

    def _created(self, name: str) -> list[Any]:
        return created_callbacks(name, getattr(self, name))

    def _run_epochs(self, run: Run, per_batch_terms: list[Any], eval_every: int) -> None:
        while run.epoch < run.epochs and not run.stop:
            for at_boundary in run.at_boundaries:
                at_boundary(run)
            self._begin_entry(run)
            run.fire("on_epoch_start")
            run_eval = run.epoch == 0 or (run.epoch + 1) % eval_every == 0
            self._run_entry(run, run.optimizers, per_batch_terms, run_eval)
            run.nb_epochs_done = run.epoch + 1
            run.fire("on_epoch_end")
            run.epoch += 1

    def _run_final_evaluation(self, run: Run, per_batch_terms: list[Any], wanted: bool) -> None:
        if wanted:
            run.is_final = True
            self._begin_entry(run)
            self._run_entry(run, None, per_batch_terms, run_eval=True)
        else:
            run.outputs = None

    def _begin_entry(self, run: Run) -> None:
        """Begin a new entry of the history, which fills up as splits end; it may have begun before a checkpoint."""
        point = run.resume_point
        run.history.append({} if point is None else point["history"])
        run.outputs = {} if point is None else point["outputs"]

    def _run_entry(self, run: Run, optimizers: Optimizers | None, per_batch_terms: list[Any], run_eval: bool) -> None:
        run.outputs, run.history[-1] = self.run_epoch_fn(
            run.options,
            run.datasets,
            optimizers,
            run.model,
            run.losses,
            run.schedulers,
            run.history,
            run.callbacks_per_batch,
            per_batch_terms,
            run_eval,
            **run_keyword(self.run_epoch_fn, run),
        )


def _run_folder(options: Options, prefix: str, resumed: Path | None) -> Path:
    """A new folder for the run, or that of the one which goes on; the options are told."""
    workflow = options["workflow_options"]
    if resumed is None:
        folder, workflow["trainer_run"] = create_numbered_folder(workflow["logging_directory"], prefix)
    else:
        folder = run_folder_of(resumed)
        number = folder.name.rpartition("_r")[2]
        workflow["trainer_run"] = int(number) if number.isdecimal() else 0
    workflow["current_logging_directory"] = str(folder)
    return folder


def _with_seeds(datasets: Datasets, seed: int | None, ours: ExitStack) -> Datasets:
    """Give each split that can be seeded one of its own; those are new chains, which we close."""
    if seed is None:
        return datasets

    def seeded_split(dataset_name: str, split_name: str, split: Any) -> Any:
        if not hasattr(split, "with_seed"):
            return split
        return ours.enter_context(split.with_seed(split_seed(seed, dataset_name, split_name)))

    return {
        dataset_name: {
            split_name: seeded_split(dataset_name, split_name, split) for split_name, split in dataset.items()
        }
        for dataset_name, dataset in datasets.items()
    }


@contextmanager
def _logging_to(path: Path) -> Generator[None, None, None]:
    """Write the records of the package to a file, and leave its logger as it was, whatever happens.

    Where nobody has configured logging, nothing below WARNING would come through, and the file would be empty; nobody
    else sees the records that the lower level lets through then.
    """
    logger = logging.getLogger("trw_pipeline")
    level = logger.level
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    if level == logging.NOTSET and not logging.getLogger().handlers:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()
