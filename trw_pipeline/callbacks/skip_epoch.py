"""Other callbacks, every few epochs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from trw_pipeline.errors import CheckpointError
from trw_pipeline.sequences.stage import check_count
from trw_pipeline.training.callback import HOOKS, Callback, create_hook_table
from trw_pipeline.training.history import History
from trw_pipeline.training.options import Options

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run

_logger = logging.getLogger(__name__)


class CallbackSkipEpoch(Callback):
    """Runs other callbacks every few epochs.

    Of the epochs 0, 1, 2, ... those run of which epoch + 1 is a multiple of `nb_epochs`: their `__call__` with all
    arguments, and all their hooks of such an epoch. `on_fit_start`, `on_fit_end`, `on_exception` and the hooks of the
    final evaluation are passed on always, and so is the call of the pre-training or post-training list. Callbacks that
    are `outer` are so among these, and those that are not `enabled` when this is made are left out.

    Args:
        nb_epochs: at least 1.
        callbacks: `Callback`s, or anything callable like `Callback.__call__`.

    Raises:
        ValueError: `nb_epochs` is less than 1; a callback does nothing at all.
        TypeError: `nb_epochs` is no int; a callback is neither a `Callback` nor callable.
    """

    def __init__(self, nb_epochs: int, callbacks: Iterable[Any]) -> None:
        self.nb_epochs = check_count("nb_epochs", nb_epochs)
        self.callbacks = list(callbacks)
        table = create_hook_table(per_epoch=self.callbacks)
        self._hooks = {
            name: tuple(hook for hook in hooks if isinstance(getattr(hook, "__self__", None), Callback))
            for name, hooks in table.items()
        }
        self._calls: list[Callable[..., Any]] = [
            callback
            for callback in self.callbacks
            if not isinstance(callback, Callback)
            or (callback.enabled and type(callback).__call__ is not Callback.__call__)
        ]

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
        """Call the callbacks, if it is their turn.

        Args:
            options: passed on.
            history: passed on; its length tells the epoch.
            model: passed on.
            losses: passed on.
            outputs: passed on.
            datasets: passed on.
            datasets_infos: passed on.
            callbacks_per_batch: passed on.
            **kwargs: passed on, all of them. Without `last_epoch` this is not the end of an epoch.
        """
        if "last_epoch" in kwargs and len(history) % self.nb_epochs:
            return
        named = {"losses": losses, "outputs": outputs, "datasets": datasets, "datasets_infos": datasets_infos}
        for callback in self._calls:
            callback(options, history, model, **named, callbacks_per_batch=callbacks_per_batch, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Give the states of the callbacks."""
        return {"callbacks": [callback.state_dict() for callback in self._stateful]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them back.

        Raises:
            CheckpointError: they are those of another number of callbacks.
        """
        states = state["callbacks"]
        if len(states) != len(self._stateful):
            raise CheckpointError(
                f"the checkpoint has the states of {len(states)} callbacks in a CallbackSkipEpoch, here are "
                f"{len(self._stateful)}"
            )
        for callback, of_callback in zip(self._stateful, states, strict=True):
            callback.load_state_dict(of_callback)

    @property
    def _stateful(self) -> list[Callback]:
        return [callback for callback in self.callbacks if isinstance(callback, Callback)]

    def _pass_on(self, name: str, run: Run) -> None:
        is_of_epoch = name not in _ALWAYS and not run.is_final
        if is_of_epoch and (run.epoch + 1) % self.nb_epochs:
            return
        for hook in self._hooks[name]:
            try:
                hook(run)
            except Exception:
                if name != "on_exception":
                    raise
                # Every callback has to hear of the end; the error that ends the training is the one to report.
                _logger.exception("a callback in a CallbackSkipEpoch failed at on_exception")


_ALWAYS = ("on_fit_start", "on_fit_end", "on_exception")


def _passing_on(name: str) -> Callable[[CallbackSkipEpoch, Run], None]:
    def hook(self: CallbackSkipEpoch, run: Run) -> None:
        self._pass_on(name, run)  # pyright: ignore[reportPrivateUsage]

    hook.__name__, hook.__doc__ = name, f"Pass `{name}` on to the callbacks, if it is their turn."
    return hook


for _name in HOOKS:
    setattr(CallbackSkipEpoch, _name, _passing_on(_name))
