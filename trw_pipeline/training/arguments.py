"""What a training is given, checked: functions before it begins, and what they give before the first epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from torch import nn

from trw_pipeline.training.optimizers import Optimizers, Schedulers
from trw_pipeline.training.run import LossFn, OptimizersFn
from trw_pipeline.typing import Datasets


def check_functions(inputs_fn: Any, model_fn: Any, optimizers_fn: Any, losses_fn: Any, loss_creator: Any) -> None:
    """Raises TypeError for one that can not be called, or that is what it should give, by its name."""
    if isinstance(model_fn, nn.Module):  # which could be called, but with a batch
        raise TypeError(
            "model_fn must be a function that is given the options and returns a model, got the model "
            f"{type(model_fn).__name__} itself: write lambda options: model"
        )
    needed = {"inputs_fn": inputs_fn, "model_fn": model_fn, "losses_fn": losses_fn, "loss_creator": loss_creator}
    if optimizers_fn is not None:
        needed["optimizers_fn"] = optimizers_fn
    for name, function in needed.items():
        if not callable(function):
            raise TypeError(f"{name} must be a function, got {type(function).__name__}")


def check_callbacks_fn(name: str, callbacks_fn: Any) -> None:
    """Raises TypeError unless it is a function or None."""
    if callbacks_fn is not None and not callable(callbacks_fn):
        raise TypeError(
            f"{name} must be a function that returns a list of new callbacks, or None, "
            f"got {type(callbacks_fn).__name__}: write lambda: [...]"
        )


def created_callbacks(name: str, callbacks_fn: Callable[[], Iterable[Any]] | None) -> list[Any]:
    """Returns the callbacks that a function gives, None gives none; raises TypeError unless it gives several."""
    callbacks = [] if callbacks_fn is None else callbacks_fn()
    if not isinstance(callbacks, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must return a list of callbacks, got {type(callbacks).__name__}")
    return list(callbacks)


def check_something_is_trained(train_split: str, optimizers: Mapping[str, Any] | None, datasets: Datasets) -> None:
    """Raises ValueError unless a dataset with an optimizer has the split that is trained on: all would be in vain."""
    if not any(train_split in datasets[name] for name in optimizers or ()):
        splits = {name: list(dataset) for name, dataset in datasets.items()}
        raise ValueError(
            f"a dataset with an optimizer must have the split {train_split!r}, which is trained on (train_split of the "
            f"options), got the splits {splits} and optimizers for {list(optimizers or ())}; optimizers_fn=None only "
            "evaluates"
        )


def check_eval_every(eval_every: Any) -> None:
    """Raises TypeError unless `eval_every` is an int, ValueError unless it is at least 1."""
    if not isinstance(eval_every, int) or isinstance(eval_every, bool):
        raise TypeError(f"eval_every_X_epoch must be an int, got {eval_every!r}")
    if eval_every < 1:
        raise ValueError(f"eval_every_X_epoch must be at least 1, got {eval_every}")


def checked_inputs(inputs: Any) -> tuple[Datasets, Mapping[str, Any]]:
    """Returns the datasets that `inputs_fn` gave, and what it told of them.

    Raises:
        TypeError: they are no mapping of mappings of what can be iterated in every epoch.
        ValueError: there is none.
    """
    datasets, datasets_infos = inputs if isinstance(inputs, tuple) and len(inputs) == 2 else (inputs, {})
    if not isinstance(datasets, Mapping):
        raise TypeError(f"inputs_fn must return a mapping of datasets, got {type(datasets).__name__}")
    if not datasets:
        raise ValueError("inputs_fn must return at least one dataset, got none")
    for dataset_name, dataset in cast("Mapping[Any, Any]", datasets).items():
        if not isinstance(dataset, Mapping):
            raise TypeError(f"the dataset {dataset_name!r} must be a mapping of splits, got {type(dataset).__name__}")
        for split_name, split in cast("Mapping[Any, Any]", dataset).items():
            # Python's own iterators (a generator, a map, ...) are used up after one epoch; others, as a Sequence, may
            # have __next__ and give a new epoch to each iter().
            is_used_up = isinstance(split, Iterator) and type(split).__module__ in ("builtins", "itertools")
            if is_used_up or not (hasattr(split, "__iter__") or hasattr(split, "__getitem__")):
                raise TypeError(
                    f"the split {dataset_name}/{split_name} must be an iterable of batches that can be iterated again, "
                    f"got {type(cast('Any', split)).__name__}"
                )
    return cast("Datasets", datasets), {} if datasets_infos is None else datasets_infos


def checked_optimizers(
    optimizers_fn: OptimizersFn | None, datasets: Datasets, model: nn.Module
) -> tuple[Optimizers | None, Schedulers | None]:
    """Returns what `optimizers_fn` makes: optimizers and schedulers by dataset name, or None.

    Raises:
        TypeError: it gives something else.
        ValueError: one is named like no dataset.
    """
    made: Any = (None, None) if optimizers_fn is None else optimizers_fn(datasets, model)
    if not isinstance(made, tuple) or len(made) != 2:
        raise TypeError(f"optimizers_fn must return (optimizers, schedulers), got {type(made).__name__}")
    for kind, by_dataset in zip(("optimizers", "schedulers"), made, strict=True):
        if by_dataset is not None and not isinstance(by_dataset, Mapping):
            raise TypeError(f"the {kind} must be a mapping by dataset name or None, got {type(by_dataset).__name__}")
        unknown = sorted(set(by_dataset or ()) - set(datasets))
        if unknown:
            raise ValueError(f"the {kind} must be named like datasets ({sorted(datasets)}), got {unknown}")
    return made


def checked_losses(losses: Mapping[str, LossFn], datasets: Datasets) -> Mapping[str, LossFn]:
    """Returns `losses`; raises ValueError unless each dataset has one."""
    missing = sorted(set(datasets) - set(losses))
    if missing:
        raise ValueError(f"loss_creator must return a loss function for each dataset, got none for {missing}")
    return losses


def check_seed(seed: int | None, checkpoint: Mapping[str, Any] | None) -> None:
    """Raises ValueError unless the training that goes on has the seed that it had, or there is none to go on with."""
    if checkpoint is not None and checkpoint["seed"] != seed:
        raise ValueError(f"seed must be that of the training that goes on, {checkpoint['seed']}, got {seed}")
