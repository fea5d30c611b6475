"""An embedding as the files that the projector of TensorBoard shows."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trw_pipeline.errors import MissingExtraError
from trw_pipeline.files import write_bytes, write_text
from trw_pipeline.reporting.row_files import event_protocol, event_records

_LARGEST_SPRITE = 8192  # pixels a side: what TensorBoard loads
_LARGEST_THUMBNAIL = 64  # pixels a side


def write_embedding(
    folder: Path,
    name: str,
    vectors: np.ndarray,
    columns: Mapping[str, Sequence[str]],
    thumbnails: Sequence[np.ndarray] = (),
) -> None:
    """Write an embedding for TensorBoard: it appears as a run of its own in the tab PROJECTOR.

    Writes `tensors.tsv`, `metadata.tsv` (if there are columns), `sprite.png` (if there are thumbnails),
    `projector_config.pbtxt` and a file of events, by which TensorBoard knows that the folder is a run.

    Args:
        folder: the folder; made if it is absent.
        name: of the embedding.
        vectors: (N, D), a vector for each sample, N at least 1.
        columns: name -> N texts, what is known of the samples; by each of them TensorBoard can label and colour.
        thumbnails: N pictures (3, y, x) uint8 of one shape, or none.

    Raises:
        MissingExtraError: tensorboard is not installed; or Pillow, and there are thumbnails.
    """
    event_protocol()
    from google.protobuf import text_format  # noqa: PLC0415 (optional, and there: see above)
    from tensorboard.plugins.projector import projector_config_pb2  # noqa: PLC0415

    sprite = _sprite(thumbnails) if len(thumbnails) else None
    folder.mkdir(parents=True, exist_ok=True)
    messages: Any = projector_config_pb2
    config = messages.ProjectorConfig()
    embedding: Any = config.embeddings.add(tensor_name=name, tensor_path="tensors.tsv")
    lines = ["\t".join(map(repr, row)) for row in vectors.astype(np.float64).tolist()]
    write_text(folder / "tensors.tsv", "\n".join(lines) + "\n")
    if columns:
        embedding.metadata_path = "metadata.tsv"
        rows = list(zip(*columns.values(), strict=True))
        # With a single column the file must have no header.
        rows = [tuple(columns), *rows] if len(columns) > 1 else rows
        write_text(folder / "metadata.tsv", "".join("\t".join(map(_in_one_cell, row)) + "\n" for row in rows))
    if sprite is not None:
        embedding.sprite.image_path = "sprite.png"
        embedding.sprite.single_image_dim.extend([thumbnails[0].shape[2], thumbnails[0].shape[1]])
        write_bytes(folder / "sprite.png", sprite)
    write_text(folder / "projector_config.pbtxt", text_format.MessageToString(config))
    write_bytes(folder / "events.out.tfevents.embedding", event_records([], is_first=True))


def thumbnail(picture: np.ndarray, nb_pictures: int) -> np.ndarray:
    """Make a picture small enough for an embedding.

    Args:
        picture: (3, y, x) uint8.
        nb_pictures: as many as this will be in one sprite.

    Returns:
        (3, y, x) uint8, no side longer than 64 pixels, nor than so many fit into the sprite.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    largest = max(1, min(_LARGEST_THUMBNAIL, _LARGEST_SPRITE // _nb_beside(nb_pictures)))
    if max(picture.shape[1:]) <= largest:
        return picture
    image: Any = _pillow().fromarray(picture.transpose(1, 2, 0))
    image.thumbnail((largest, largest))
    return np.asarray(image).transpose(2, 0, 1)


def _nb_beside(nb_pictures: int) -> int:
    return math.ceil(math.sqrt(nb_pictures))


def _sprite(thumbnails: Sequence[np.ndarray]) -> bytes:
    """The pictures row by row in a square, as TensorBoard wants them."""
    pillow = _pillow()
    _, height, width = thumbnails[0].shape
    side = _nb_beside(len(thumbnails))
    sprite = np.zeros((side * height, side * width, 3), np.uint8)
    for number, picture in enumerate(thumbnails):
        top, left = number // side * height, number % side * width
        sprite[top : top + height, left : left + width] = picture.transpose(1, 2, 0)
    data = io.BytesIO()
    pillow.fromarray(sprite).save(data, format="PNG")
    return data.getvalue()


def _pillow() -> Any:
    try:
        from PIL import Image  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise MissingExtraError("pictures of an embedding", "images") from error
    return Image


def _in_one_cell(text: str) -> str:
    return " ".join(text.split())  # a tab or a line end would begin another one
