"""Which dataset and split to take where the user has named none."""

from __future__ import annotations

from trw_pipeline.typing import Datasets


def find_default_dataset_and_split_names(
    datasets: Datasets,
    default_dataset_name: str | None = None,
    default_split_name: str | None = None,
    train_split_name: str | None = None,
) -> tuple[str, str]:
    """Choose a dataset and one of its splits: what was asked for, else the first that fits.

    Args:
        datasets: dataset name -> split name -> split.
        default_dataset_name: the dataset. None: the first one that has a fitting split.
        default_split_name: the split. None: the first one that is not the training split.
        train_split_name: name of the split that is not to be chosen, or None.

    Returns:
        Name of the dataset, name of the split.

    Raises:
        ValueError: what was asked for is absent, or is the training split; or nothing fits.
    """
    if default_dataset_name is not None and default_dataset_name not in datasets:
        raise ValueError(f"the dataset {default_dataset_name!r} must be one of {list(datasets)}")
    if default_split_name is not None and default_split_name == train_split_name:
        raise ValueError(f"the split must not be the one that is trained on, got {default_split_name!r}")
    wanted = datasets if default_dataset_name is None else [default_dataset_name]
    for dataset_name in wanted:
        for split_name in datasets[dataset_name]:
            if split_name != train_split_name and default_split_name in (None, split_name):
                return dataset_name, split_name
    there = {name: list(datasets[name]) for name in wanted}
    asked = f"no split {default_split_name!r}" if default_split_name is not None else "no split to choose"
    raise ValueError(f"there is {asked} (train_split_name={train_split_name!r}) among {there}")
