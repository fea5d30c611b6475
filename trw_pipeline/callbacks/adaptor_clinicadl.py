"""Callbacks written for the hooks of clinicadl's trainer, in this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trw_pipeline.training.callback import Callback

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run

HOOKS = (
    "on_trainer_init",
    "on_train_start",
    "on_resume",
    "on_epoch_start",
    "on_batch_start",
    "on_forward_step_start",
    "on_backward_step_start",
    "on_backward_step_end",
    "on_optimization_step_start",
    "on_optimization_step_end",
    "on_validation_start",
    "on_evaluation_step_start",
    "on_metrics_computation_start",
    "on_metrics_computation_end",
    "on_batch_end",
    "on_validation_end",
    "on_epoch_end",
    "on_train_end",
    "on_validate_start",
    "on_validate_end",
    "on_test_start",
    "on_test_end",
    "on_exception",
)


class CallbackAdaptorClinicadl(Callback):
    """Calls a callback that has hooks of clinicadl 2, by their names and with their keywords.

    Every hook is called with keywords only, and needs to take those that it gets. All get `model`, the run folder as
    `maps` (a `Path`), and `state` (a `ClinicadlState`). Besides:

    | hook | keywords |
    |---|---|
    | on_trainer_init | metrics, optimization, callbacks |
    | on_train_start; on_resume, where the training goes on | the same, split, optimizers, grad_scaler, computational |
    | on_epoch_start, on_epoch_end, on_batch_end, on_backward_step_end, on_train_end | |
    | on_batch_start, on_forward_step_start, on_evaluation_step_start | batch: as it arrived, then on the device |
    | on_backward_step_start | loss, grad_scaler |
    | on_optimization_step_start, on_optimization_step_end | optimizers, grad_scaler |
    | on_validation_start | dataloader, metrics |
    | on_metrics_computation_start | output, metrics |
    | on_metrics_computation_end | detailed_metrics_df |
    | on_validation_end, on_validate_end, on_test_end | metrics |
    | on_validate_start | dataloader, model_checkpoint, metrics, callbacks, computational |
    | on_test_start | the same, and group_name |
    | on_exception | exception |

    Splits that an epoch evaluates are validations. The final evaluation comes after `on_train_end`, as if it had been
    asked for then: a split named "test" is a test, any other one is validated. The values are those of this package:

    - `split` and `dataloader`: the datasets, and the split;
    - `optimizers`: dataset name -> optimizers; `grad_scaler`: the gradient scaler or None;
    - `optimization`: an `Optimization`; `computational`: the options; `callbacks`: all callbacks;
    - `metrics`: output -> metric -> value of the split, empty until it is over;
    - `output` and `detailed_metrics_df`: output name -> loss term of the batch;
    - `model_checkpoint`: None, since the model is the one just trained; `group_name`: name of the dataset.

    So the callbacks that come with clinicadl, which also want its `Maps`, `Split` and configurations, stop at the first
    attribute of these; `MonitorCallback` of this package measures what its own does. Those that users write for its
    hooks need no more than what the table says.

    Its state is that of the callback, which may have `state_dict` and `load_state_dict`.

    Args:
        callback: any object with at least one of the hooks.

    Raises:
        TypeError: it has none.
    """

    def __init__(self, callback: Any) -> None:
        self.callback = callback
        self._hooks = {name: getattr(callback, name) for name in HOOKS if callable(getattr(callback, name, None))}
        if not self._hooks:
            raise TypeError(f"callback must have a hook of clinicadl's, such as {HOOKS[1]}, got {callback!r}")
        self._is_trained = False

    def _call(self, name: str, run: Run, **more: Any) -> None:
        hook = self._hooks.get(name)
        if hook is not None:
            hook(model=run.model, maps=run.log_dir, state=ClinicadlState(run), **more)

    def on_fit_start(self, run: Run) -> None:
        """Tell that there is a trainer, and that it starts or goes on."""
        self._is_trained = False
        common: dict[str, Any] = {"metrics": {}, "optimization": run.optimization, "callbacks": run.callbacks}
        self._call("on_trainer_init", run, **common)
        self._call(
            "on_resume" if run.resumed else "on_train_start",
            run,
            split=run.datasets,
            computational=run.options,
            **common,
            **_optimizers(run),
        )

    def on_epoch_start(self, run: Run) -> None:
        """Tell it."""
        self._call("on_epoch_start", run)

    def on_split_start(self, run: Run) -> None:
        """Tell of a split that is evaluated."""
        if run.training:
            return
        more: dict[str, Any] = {"dataloader": run.datasets[run.dataset][run.split], "metrics": {}}
        if run.is_final:
            self._end_train(run)
            more |= {"model_checkpoint": None, "callbacks": run.callbacks, "computational": run.options}
        if _evaluation(run) == "test":
            more["group_name"] = run.dataset
        self._call(f"on_{_evaluation(run)}_start", run, **more)

    def on_batch_start(self, run: Run) -> None:
        """Tell it."""
        self._call("on_batch_start", run, batch=run.batch)

    def on_forward_start(self, run: Run) -> None:
        """Tell of the forward step, or of that of an evaluation."""
        self._call("on_forward_step_start" if run.training else "on_evaluation_step_start", run, batch=run.batch)

    def on_loss(self, run: Run) -> None:
        """Tell that the step is over."""
        if run.training:
            self._call("on_backward_step_start", run, loss=run.loss, grad_scaler=run.scaler)
        else:
            self._call("on_metrics_computation_start", run, output=run.terms, metrics={})

    def on_backward_end(self, run: Run) -> None:
        """Tell it."""
        self._call("on_backward_step_end", run)

    def on_step_start(self, run: Run) -> None:
        """Tell it."""
        self._call("on_optimization_step_start", run, **_optimizers(run))

    def on_step_end(self, run: Run) -> None:
        """Tell it."""
        self._call("on_optimization_step_end", run, **_optimizers(run))

    def on_batch_end(self, run: Run) -> None:
        """Tell it; of an evaluated batch first that its metrics are there."""
        if not run.training:
            self._call("on_metrics_computation_end", run, detailed_metrics_df=run.terms)
        self._call("on_batch_end", run)

    def on_split_end(self, run: Run) -> None:
        """Tell of a split that is evaluated."""
        if not run.training:
            self._call(f"on_{_evaluation(run)}_end", run, metrics=run.history[-1][run.dataset][run.split])

    def on_epoch_end(self, run: Run) -> None:
        """Tell it."""
        self._call("on_epoch_end", run)

    def on_fit_end(self, run: Run) -> None:
        """Tell it, if the final evaluation has not."""
        self._end_train(run)

    def on_exception(self, run: Run) -> None:
        """Tell it."""
        self._call("on_exception", run, exception=run.error)

    def state_dict(self) -> dict[str, Any]:
        """Give the state of the callback."""
        return dict(self.callback.state_dict()) if hasattr(self.callback, "state_dict") else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give it back."""
        if hasattr(self.callback, "load_state_dict"):
            self.callback.load_state_dict(state)

    def _end_train(self, run: Run) -> None:
        if not self._is_trained:
            self._is_trained = True
            self._call("on_train_end", run)


class ClinicadlState:
    """Where a training stands, by the names and counts of clinicadl's `TrainerState`; setting `should_stop` ends it.

    Args:
        run: the training.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def called(self) -> str:
        """What is at work: "train", "validate" or "test"."""
        return _evaluation(self._run) if self._run.is_final else "train"

    @property
    def stage(self) -> str:
        """What is done with batches: "training" or "evaluation"."""
        return "training" if self._run.training else "evaluation"

    @property
    def should_stop(self) -> bool:
        """Whether the training ends after this epoch."""
        return self._run.stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self._run.stop = value

    @property
    def current_epoch(self) -> int:
        """The epoch at work, from 1; 0 before the first, and the last one after it."""
        return self._run.epoch if self._run.is_final else len(self._run.history)

    @property
    def num_epochs(self) -> int:
        """Epochs to train."""
        return self._run.epochs

    @property
    def optim_step(self) -> int:
        """Steps of the optimizers since the training began."""
        return self._run.nb_steps

    @property
    def split_idx(self) -> int:
        """Number of the run folder."""
        return self._run.options["workflow_options"]["trainer_run"]

    @property
    def current_train_batch(self) -> int:
        """Number of the batch in its split, from 1, where that is trained on; else, and before the first, 0."""
        return self._batch if self._run.training else 0

    @property
    def num_train_batches(self) -> int | None:
        """Batches of that split; None where nobody knows."""
        return self._run.num_batches if self._run.training else 0

    @property
    def current_val_batch(self) -> int:
        """The same of a split that is validated."""
        return self._batch if self._is_evaluating("validation", "validate") else 0

    @property
    def num_val_batches(self) -> int | None:
        """Batches of that split."""
        return self._run.num_batches if self._is_evaluating("validation", "validate") else 0

    @property
    def current_test_batch(self) -> int:
        """The same of a test."""
        return self._batch if self._is_evaluating("test") else 0

    @property
    def num_test_batches(self) -> int | None:
        """Batches of that split."""
        return self._run.num_batches if self._is_evaluating("test") else 0

    @property
    def _batch(self) -> int:
        return self._run.batch_index + (self._run.batch != {})  # which it is before the first batch and after the last

    def _is_evaluating(self, *kinds: str) -> bool:
        return not self._run.training and _evaluation(self._run) in kinds


def _evaluation(run: Run) -> str:
    """What clinicadl calls the evaluation of the split at work."""
    if not run.is_final:
        return "validation"
    return "test" if run.split == "test" else "validate"


def _optimizers(run: Run) -> dict[str, Any]:
    return {"optimizers": run.optimizers, "grad_scaler": run.scaler}
