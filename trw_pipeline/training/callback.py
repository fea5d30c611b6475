"""The moments of a training at which others may look in, and who is called at each.

fit_start                                                        1
for each epoch:  epoch_start                                     2
    for each dataset and split:  split_start                     3
        for each batch:  batch_start      batch as it arrived    4
                         forward_start    batch on the device    5
                         loss             heads and loss known   6
                         backward_end     training only          7
                         step_start       training only          8
                         step_end         training only          9
                         batch_end                               10
    split_end                             history has the split  11
epoch_end                                 history has the epoch  12
(the final evaluation: 3 to 6, 10 and 11 for every split)
fit_end                                                          13
exception                                 instead of what is left
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from torch import nn

from trw_pipeline.outputs.output import LossTerm
from trw_pipeline.typing import Batch

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run

HOOKS = (
    "on_fit_start",
    "on_epoch_start",
    "on_split_start",
    "on_batch_start",
    "on_forward_start",
    "on_loss",
    "on_backward_end",
    "on_step_start",
    "on_step_end",
    "on_batch_end",
    "on_split_end",
    "on_epoch_end",
    "on_fit_end",
    "on_exception",
)

Hook: TypeAlias = Callable[["Run"], None]

HookTable: TypeAlias = dict[str, tuple[Hook, ...]]
"""Hook name -> who is called, in order. A hook that nobody wants costs one empty loop."""

BatchCallback: TypeAlias = Callable[[str, str, Batch], Any]
"""(dataset name, split name, batch): may edit the batch; StopIteration ends the split."""

LossTermsCallback: TypeAlias = Callable[[str, str, Batch, Mapping[str, LossTerm]], Any]
"""(dataset name, split name, batch, loss terms): after the step; StopIteration ends the split."""


class Callback:
    """Looks in at a training. Every method does nothing until it is overridden.

    There are two ways, and a callback may use both:

    - `__call__` runs at one moment, chosen by the list the callback hangs in: pre-training at `fit_start`, per epoch at
      `epoch_end`, post-training at `fit_end`.
    - the hooks `on_...` run at theirs, for a callback in the list of each epoch. In the pre-training list only
      `on_fit_start` runs, in the post-training list only `on_fit_end`.

    All get the same `run`, with everything that is known at that moment. Callbacks run one after the other in the
    thread of the training, in the order of the lists: pre-training, per epoch, post-training. An error ends the
    training; it carries a note that names the callback.
    """

    outer: ClassVar[bool] = False
    """Whether the callback stands around the others: first at hooks that start something, last at all others."""

    enabled: bool = True
    """Whether the callback is called at all; looked at once, before the training."""

    def __call__(
        self,
        options: Any,
        history: Any,
        model: nn.Module,
        losses: Any,
        outputs: Any,
        datasets: Any,
        datasets_infos: Any,
        callbacks_per_batch: Any,
        **kwargs: Any,
    ) -> None:
        """Run at the moment of the list.

        Args:
            options: the options of this run.
            history: empty before training; after epoch e it has e + 1 entries; one more after the final evaluation.
            model: the model being trained.
            losses: dataset name -> loss function.
            outputs: dataset -> split -> output -> loss term of the newest epoch, or of the final evaluation; else None.
            datasets: dataset name -> dataset.
            datasets_infos: what is known of the datasets.
            callbacks_per_batch: what to hand to `eval_loop` in order to see batches as the training does.
            **kwargs: `optimizers_fn`; before and during training `optimizers`; during training `last_epoch`, whether
                this was the last one.
        """

    def on_fit_start(self, run: Run) -> None:
        """All objects are built, nothing has been trained."""

    def on_epoch_start(self, run: Run) -> None:
        """`run.epoch` is about to begin."""

    def on_split_start(self, run: Run) -> None:
        """`run.split` of `run.dataset` is about to be trained on or evaluated: `run.training`."""

    def on_batch_start(self, run: Run) -> None:
        """`run.batch` is as it arrived, still where the data made it."""

    def on_forward_start(self, run: Run) -> None:
        """`run.batch` is on the device, about to go into the model; it is the loop's own dict and may be edited."""

    def on_loss(self, run: Run) -> None:
        """`run.terms` and `run.loss` are known. To read a value of a tensor here stops the device."""

    def on_backward_end(self, run: Run) -> None:
        """The gradients of this batch are there."""

    def on_step_start(self, run: Run) -> None:
        """The optimizer is about to step."""

    def on_step_end(self, run: Run) -> None:
        """The optimizer has stepped, and the gradients are gone."""

    def on_batch_end(self, run: Run) -> None:
        """The batch is counted. Setting `run.split_stopped` ends the split."""

    def on_split_end(self, run: Run) -> None:
        """`run.history[-1][run.dataset][run.split]` is there."""

    def on_epoch_end(self, run: Run) -> None:
        """`run.history[-1]` and `run.outputs` are those of the epoch. Setting `run.stop` ends the training."""

    def on_fit_end(self, run: Run) -> None:
        """The training and its final evaluation are over."""

    def on_exception(self, run: Run) -> None:
        """The training ends with `run.error`; this hook runs for all callbacks, even if it fails for one of them."""

    def state_dict(self) -> dict[str, Any]:
        """Give what a resumed training needs to go on as if nothing had happened: plain data; here nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave, on a fresh object as well as after `on_fit_start`."""


def create_hook_table(
    pre_training: Iterable[Any] = (), per_epoch: Iterable[Any] = (), post_training: Iterable[Any] = ()
) -> HookTable:
    """Find out who is called when.

    Args:
        pre_training: callbacks, or anything callable like `Callback.__call__`, for `on_fit_start` alone.
        per_epoch: the same for `on_epoch_end`; callbacks have all their hooks called.
        post_training: the same for `on_fit_end` alone.

    Returns:
        Hook name -> who is called. Only methods that a callback overrides are in it.

    Raises:
        TypeError: an element is neither a `Callback` nor callable.
        ValueError: a callback has nothing to do in the list it hangs in.
    """
    found: list[tuple[str, Hook, bool]] = []
    lists = (
        (pre_training, "on_fit_start", ("on_fit_start",)),
        (per_epoch, "on_epoch_end", HOOKS),
        (post_training, "on_fit_end", ("on_fit_end",)),
    )
    for callbacks, moment, hooks in lists:
        for callback in callbacks:
            if isinstance(callback, Callback) and not callback.enabled:
                continue
            wanted = _wanted(callback, moment, hooks)
            if not wanted:
                raise ValueError(f"{type(callback).__name__} does nothing at {moment}, the moment of the list it is in")
            found += [(name, hook, getattr(callback, "outer", False)) for name, hook in wanted]
    table: HookTable = {}
    for name in HOOKS:
        outer = [hook for hook_name, hook, is_outer in found if hook_name == name and is_outer]
        inner = [hook for hook_name, hook, is_outer in found if hook_name == name and not is_outer]
        table[name] = tuple(outer + inner if name.endswith("_start") else inner + outer)
    return table


def with_batch_callbacks(
    table: HookTable, per_batch: Iterable[BatchCallback] | None, per_loss_terms: Iterable[LossTermsCallback] | None
) -> HookTable:
    """Add the callbacks of batches, after all others, to a copy of a table.

    Args:
        table: hook name -> who is called.
        per_batch: called with each batch on its device, before the model; or None.
        per_loss_terms: called with each batch and its loss terms, after the step; or None.

    Returns:
        The new table. StopIteration of these callbacks, and of nothing else, sets `run.split_stopped`: the batch
        counts, the callbacks after it still run, and the split ends when the batch is done.
    """
    before = tuple(functools.partial(_call_per_batch, callback) for callback in per_batch or ())
    after = tuple(functools.partial(_call_per_loss_terms, callback) for callback in per_loss_terms or ())
    return table | {
        "on_forward_start": table["on_forward_start"] + before,
        "on_batch_end": table["on_batch_end"] + after,
    }


def owner_name(hook: Hook) -> str:
    """Give the name of the callback behind an entry of a table."""
    owner = hook.args[0] if isinstance(hook, functools.partial) else getattr(hook, "__self__", hook)
    return getattr(owner, "__qualname__", type(owner).__qualname__)


def _wanted(callback: Any, moment: str, hooks: tuple[str, ...]) -> list[tuple[str, Hook]]:
    """What a callback does: its overridden hooks among those given and, at the moment of its list, its `__call__`."""
    if not isinstance(callback, Callback):
        if not callable(callback):
            raise TypeError(f"a callback must be a Callback or callable, got {type(callback).__name__}")
        return [(moment, functools.partial(_call_at_moment, callback, moment))]
    kind = type(callback)
    wanted = [(name, getattr(callback, name)) for name in hooks if getattr(kind, name) is not getattr(Callback, name)]
    if kind.__call__ is not Callback.__call__:
        wanted.append((moment, functools.partial(_call_at_moment, callback, moment)))
    return wanted


def _call_at_moment(callback: Callable[..., Any], moment: str, run: Run) -> None:
    extra: dict[str, Any] = {"optimizers_fn": run.optimizers_fn}
    if moment != "on_fit_end":
        extra["optimizers"] = run.optimizers
    if moment == "on_epoch_end":
        extra["last_epoch"] = run.last_epoch
    callback(
        run.options,
        run.history,
        run.model,
        losses=run.losses,
        outputs=run.outputs,
        datasets=run.datasets,
        datasets_infos=run.datasets_infos,
        callbacks_per_batch=run.callbacks_per_batch,
        **extra,
    )


def _call_per_batch(callback: BatchCallback, run: Run) -> None:
    try:
        callback(run.dataset, run.split, run.batch)
    except StopIteration:
        run.split_stopped = True


def _call_per_loss_terms(callback: LossTermsCallback, run: Run) -> None:
    try:
        callback(run.dataset, run.split, run.batch, run.terms)
    except StopIteration:
        run.split_stopped = True
