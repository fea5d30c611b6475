"""A chain in words: its stages, and the features that each gives, with shapes and dtypes."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

from trw_pipeline.batches.length import holds_samples, is_stored, len_batch
from trw_pipeline.sequences.file_rows import UnreadRows
from trw_pipeline.typing import Item

Line = tuple[str, list[str] | None]
"""A stage, and what it gives, a word for each feature; None if that is not known."""


def as_text(lines: Iterable[Line]) -> str:
    """Returns a line for each stage, and below it one for what it gives, as far as that is known."""
    texts: list[str] = []
    for stage, gives in lines:
        texts.append(f"  .{stage}" if texts else stage)
        if gives is not None:
            texts.append(f"      gives {'; '.join(gives) or 'nothing'}")
    return "\n".join(texts)


def as_html(lines: Iterable[Line]) -> str:
    """Returns a table with a row for each stage. Whatever features are called, it is shown and not obeyed."""
    rows = [
        f"<tr><td><code>{html.escape(stage)}</code></td><td>{'<br>'.join(map(html.escape, gives or ()))}</td></tr>"
        for stage, gives in lines
    ]
    return f"<table><thead><tr><th>stage</th><th>gives</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"


def layout_of(item: Item) -> list[str]:
    """Describes an item: of a batch each feature with its shape, where N is the number of samples, and dtype.

    >>> layout_of({"image": np.zeros((16, 28, 28), np.float32), "id": ["a"] * 16, "spacing": 0.5})
    ['image: (N, 28, 28) float32', 'id: list of N str', 'spacing: float, batch-wide']
    """
    if isinstance(item, Mapping):
        batch = cast("Mapping[Any, Any]", item)
        nb = len_batch(batch)
        return [f"{_name(name)}: {_value(value, nb)}" for name, value in batch.items()]
    if isinstance(item, list):
        items = cast("list[Any]", item)
        return [f"list of {len(items)}" + (" times" if items else ""), *(layout_of(items[0]) if items else ())]
    return [_value(item, -1).removesuffix(", batch-wide")]


def _value(value: Any, nb: int) -> str:
    if isinstance(value, list):
        values = cast("list[Any]", value)
        kind = f" {type(values[0]).__name__}" if values else ""
        return f"list of {'N' if len(values) == nb else len(values)}{kind}"
    if not holds_samples(value) and not isinstance(value, UnreadRows):
        return f"{type(value).__name__}, batch-wide"
    length, *others = value.shape
    shape = ", ".join(str(size) for size in ["N" if length == nb else length, *others])
    shape = f"({shape}{'' if others else ','})"
    if isinstance(value, UnreadRows) or is_stored(value):
        return f"{shape} {value.dtype}, in a file"
    if isinstance(value, np.ndarray):
        return f"{shape} {value.dtype}"
    device = "" if value.device.type == "cpu" else f" on {value.device}"
    return f"{shape} {str(value.dtype).removeprefix('torch.')} tensor{device}"


def _name(name: Any) -> str:
    return name if isinstance(name, str) and name.isprintable() else repr(name)
