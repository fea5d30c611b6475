"""The pictures that callbacks left in a run folder, as parts of a page."""

from __future__ import annotations

import base64
import contextlib
import itertools
import os
import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from trw_pipeline.reporting.markup import Markup, element

NB_PICTURES = 12
"""Of each kind: a page is to be read. Those of the newest epoch are shown, as many of one split as of the other."""

PICTURE_BYTES, ALL_BYTES = 4 * 2**20, 24 * 2**20
"""Most of one picture, and of all on a page, as files; in the page they take a third more."""

_TITLES = {
    "-cm": "Confusion matrices",
    "-ROC": "ROC curves",
    "-history": "Errors of each class",
    "worst_samples_by_epoch": "Worst samples",
    "errors": "Classification errors",
    "explained": "Explanations",
    "random_samples": "Samples",
    "samples": "Samples",
    "augmentations": "Augmentations",
    "convolution_kernels": "Convolution kernels",
    "activations": "Activations",
    "lr_finder": "Learning rate finder",
    "": "Other pictures",
}
"""End of the name of a file in the run folder, or name of a folder in it -> title, in the order of a page."""

OF_CLASSES = ("-cm", "-ROC", "-history")
"""Ends of the names that `CallbackExportClassificationReport` gives."""

_LEFT_OUT = ("history", "lr_recorder", "checkpoints", "tensorboard", "logs")
"""Folders in which there are no pictures, or only curves, which pages draw themselves."""

_EPOCH = re.compile(r"_(?:e|iter_)(\d+)(?![0-9A-Za-z])")
"""The epoch in the name of a file."""

_FILE_NAMED = re.compile(r"\.(png|npy)$")
"""Lines of a text that only say where a picture or an array is."""

_SMALL = 160
"""Pixels up to which a picture is shown at a glance, with its pixels as squares."""

_NB_WORDS, _NB_LINES = 160, 5
"""Most characters of a line, and lines, of the text of a sample under its picture."""


@dataclass
class Gallery:
    """Pictures of one kind.

    Attributes:
        name: folder in the run folder, or end of the names.
        title: for people.
        pictures: as elements.
        nb_left_out: there are so many more.
    """

    name: str
    title: str
    pictures: list[Markup] = field(default_factory=list[Markup])
    nb_left_out: int = 0


def galleries(folder: Path) -> list[Gallery]:
    """Collect the pictures of a run folder.

    Args:
        folder: the run folder. PNG files are taken from it and the folders in it; what a link leads to is not, nor what
            is no complete PNG file.

    Returns:
        The kinds of which there is a picture, known ones first. Each picture is in the page itself, with the text of
        its sample, if there is one beside it: `<name>.txt` for `<name>.png` or `<name>_<anything>.png`.
    """
    by_kind: dict[str, list[_File]] = {}
    for file in _png_files(folder):
        by_kind.setdefault(_kind(file.path.relative_to(folder)), []).append(file)
    known = [name for name in _TITLES if name in by_kind]
    others = sorted(set(by_kind) - set(_TITLES))
    left_bytes = ALL_BYTES
    found: list[Gallery] = []
    for name in [*known, *others]:
        gallery = Gallery(name, _TITLES.get(name, name))
        found.append(gallery)
        for file in _chosen(by_kind[name]):
            data = _read(file.path) if file.size <= min(PICTURE_BYTES, left_bytes) else b""
            picture = _picture(file.path, folder, data)
            if picture is not None:
                gallery.pictures.append(picture)
                left_bytes -= len(data)
        gallery.nb_left_out = len(by_kind[name]) - len(gallery.pictures)
    return found


class _File(NamedTuple):
    path: Path
    size: int


def _png_files(folder: Path) -> Iterator[_File]:
    for where, folders, names in os.walk(folder):
        if Path(where) == folder:
            folders[:] = [name for name in folders if name not in _LEFT_OUT]
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.endswith(".png") or name.startswith("."):
                continue
            path = Path(where) / name
            with contextlib.suppress(FileNotFoundError):  # somebody has removed it meanwhile
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield _File(path, status.st_size)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # the same
        return b""


def _kind(path: Path) -> str:
    if len(path.parts) > 1:
        return path.parts[0]
    return next((end for end in OF_CLASSES if path.stem.endswith(end)), "")


def _chosen(files: list[_File]) -> list[_File]:
    """The first of each group of names that differ in numbers alone, then the second of each, and so on."""
    epochs = {file: int(found[1]) for file in files if (found := _EPOCH.search(file.path.stem))}
    newest = max(epochs.values(), default=0)
    groups: dict[str, list[_File]] = {}
    for file in sorted(files, key=_by_numbers):
        if epochs.get(file, newest) == newest:
            groups.setdefault(re.sub(r"\d+", "", str(file.path)), []).append(file)
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*groups.values()))
    return sorted(itertools.islice(filter(None, in_turn), NB_PICTURES), key=_by_numbers)


def _by_numbers(file: _File) -> list[tuple[int, str]]:
    """Sorts `filter_2` before `filter_10`."""
    return [(int(word or 0), rest) for word, rest in re.findall(r"(\d*)(\D*)", str(file.path))]


def _picture(path: Path, folder: Path, data: bytes) -> Markup | None:
    """A picture with its caption, or None if the data is not a whole PNG file."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n") or data[-8:-4] != b"IEND" or len(data) < 33:
        return None
    width, height = struct.unpack(">II", data[16:24])
    relative = path.relative_to(folder)
    image = element(
        "img",
        src=f"data:image/png;base64,{base64.b64encode(data).decode()}",
        alt=f"{relative}",
        width=width,
        height=height,
        class_="pixels" if max(width, height) <= _SMALL else None,
    )
    lines = [element("br") if number % 2 else text for text in _lines_beside(path) for number in range(2)]
    shown = element("button", image, type="button", aria_expanded="false")
    return element(
        "figure", shown, element("figcaption", element("strong", path.stem), element("br") if lines else None, lines)
    )


def _lines_beside(path: Path) -> list[str]:
    """First lines of the text of the sample that the picture shows."""
    stem = path.stem
    while stem:
        text = path.with_name(f"{stem}.txt")
        if text.is_file() and not text.is_symlink():
            with text.open(encoding="utf-8", errors="replace") as file:
                lines = (line.strip() for line in file)
                said = [line for line in lines if line and not _FILE_NAMED.search(line)]
            return [line if len(line) <= _NB_WORDS else f"{line[:_NB_WORDS]}..." for line in said[:_NB_LINES]]
        stem = stem.rpartition("_")[0]
    return []


def is_small(picture: Markup) -> bool:
    """Tell whether a picture is one that is shown at a glance."""
    return 'class="pixels"' in picture
