"""What the user calls the classes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

_logger = logging.getLogger(__name__)


def class_names_of(datasets_infos: Any, dataset_name: str, split_name: str) -> dict[str, Mapping[int, str]]:
    """Look up the names of the classes of a split.

    Args:
        datasets_infos: what is known of the datasets; the names are
            `datasets_infos[dataset_name][split_name]['output_mappings'][feature]['mappinginv']`, class -> name. None,
            and whatever is absent on the way, is no names.
        dataset_name: name of the dataset.
        split_name: name of the split.

    Returns:
        Feature -> class -> name, of the features that have names. Names in another form are warned of.
    """
    of_split: Any = ((datasets_infos or {}).get(dataset_name) or {}).get(split_name) or {}
    mappings: Any = of_split.get("output_mappings") or {}
    names: dict[str, Mapping[int, str]] = {}
    for feature, mapping in mappings.items():
        if isinstance(mapping, Mapping) and "mappinginv" in mapping:
            names[feature] = mapping["mappinginv"]
        elif mapping is not None:
            _logger.warning(
                "the classes of %r have no names: output_mappings must have 'mappinginv', class -> name, got %r",
                feature,
                mapping,
            )
    return names
