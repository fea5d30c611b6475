"""The same training several times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from trw_pipeline.trainer import InputsFn, LossCreator, Trainer
from trw_pipeline.training.loop import create_losses_fn, default_sum_all_losses
from trw_pipeline.training.options import Options
from trw_pipeline.training.run import LossFn, OptimizersFn
from trw_pipeline.training.saved_model import Result


def run_trainer_repeat(
    trainer: Trainer,
    options: Options,
    inputs_fn: InputsFn,
    model_fn: Callable[[Options], nn.Module],
    optimizers_fn: OptimizersFn | None,
    losses_fn: LossFn = default_sum_all_losses,
    loss_creator: LossCreator = create_losses_fn,
    run_prefix: str = "default",
    eval_every_X_epoch: int = 1,
    number_of_training_runs: int = 10,
    post_init_fn: Callable[[], Any] | None = None,
    *,
    seed: int | None = None,
    **fit_arguments: Any,
) -> tuple[nn.Module, Result]:
    """Train the same model several times, to see how much its figures vary.

    Each training has its own run folder, with its own history; only the last model is kept in memory.

    Args:
        trainer: its `fit` is called once for each training. The arguments that are not named here are those of it.
        options: see `Trainer.fit`.
        inputs_fn: see `Trainer.fit`.
        model_fn: see `Trainer.fit`.
        optimizers_fn: see `Trainer.fit`.
        losses_fn: see `Trainer.fit`.
        loss_creator: see `Trainer.fit`.
        run_prefix: see `Trainer.fit`.
        eval_every_X_epoch: see `Trainer.fit`.
        number_of_training_runs: at least 1.
        post_init_fn: called without arguments before each training; or None.
        seed: of the first training; each further one has the next number. None: none of them has a seed.
        **fit_arguments: further arguments of `Trainer.fit`, but for `resume`: every training begins anew.

    Returns:
        What `Trainer.fit` gave for the last training: the model and the result.

    Raises:
        ValueError: there is to be no training, or one is to be resumed.
        TypeError: the number of trainings is not an int.
    """
    if not isinstance(number_of_training_runs, int) or isinstance(number_of_training_runs, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"number_of_training_runs must be an int, got {number_of_training_runs!r}")
    if number_of_training_runs < 1:
        raise ValueError(f"number_of_training_runs must be at least 1, got {number_of_training_runs}")
    if "resume" in fit_arguments:
        raise ValueError("resume can not be repeated: every training begins anew")
    fitted = None
    for number in range(number_of_training_runs):
        del fitted  # the next one needs the memory
        if post_init_fn is not None:
            post_init_fn()
        fitted = trainer.fit(
            options,
            inputs_fn,
            model_fn,
            optimizers_fn,
            losses_fn,
            loss_creator,
            run_prefix,
            eval_every_X_epoch=eval_every_X_epoch,
            seed=None if seed is None else seed + number,
            **fit_arguments,
        )
    assert fitted is not None, "there was at least one"
    return fitted
