"""The sources and the configuration of a training."""

from __future__ import annotations

import io
import logging
import os
import pprint
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from trw_pipeline.files import write_bytes
from trw_pipeline.sequences.stage import check_count
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import History
from trw_pipeline.training.options import Options

_logger = logging.getLogger(__name__)

_NOT_SOURCES = ("__pycache__", "node_modules")
_IS_ENVIRONMENT = "pyvenv.cfg"
"""A folder with this file is an environment of Python: libraries, not sources."""


def default_extensions() -> list[str]:
    """Give the extensions of the files that are sources: those of Python, of shells and of configurations."""
    return [".py", ".sh", ".bat", ".toml", ".yaml", ".yml", ".cfg", ".ini"]


class CallbackZipSources(Callback):
    """Keeps the sources of a training, so that its result can be made again, and logs its options.

    Writes `<run folder>/<filename>`, with each file under the name of its folder: `src/net/model.py` for the folder
    `/home/me/src`. The same sources give the same bytes. Caches, hidden folders and environments of Python are left
    out, and links to folders are not followed. A file that can not be read is left out with a warning.

    The options, to whose `runtime` anything may be added, are logged at level INFO.

    Args:
        folders_to_record: one folder or several.
        extensions: of the files that are kept. None: `default_extensions()`.
        filename: of the archive, in the run folder.
        max_width: most characters in a line of the options.

    Raises:
        ValueError: something in `folders_to_record` is no folder; `max_width` is less than 1.
        TypeError: `max_width` is no int.
    """

    def __init__(
        self,
        folders_to_record: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        extensions: Collection[str] | None = None,
        filename: str = "sources.zip",
        max_width: int = 200,
    ) -> None:
        is_one = isinstance(folders_to_record, (str, os.PathLike))
        folders: Any = [folders_to_record] if is_one else folders_to_record
        self.folders_to_record = [Path(folder).absolute() for folder in folders]
        for folder in self.folders_to_record:
            if not folder.is_dir():
                raise ValueError(f"folders_to_record must be folders, got {str(folder)!r}")
        self.extensions = tuple(default_extensions() if extensions is None else extensions)
        self.filename = filename
        self.max_width = check_count("max_width", max_width)

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
        """Write the archive, and log the options.

        Args:
            options: has the run folder; is logged.
            history: not used.
            model: not used.
            losses: not used.
            outputs: not used.
            datasets: not used.
            datasets_infos: not used.
            callbacks_per_batch: not used.
            **kwargs: not used.
        """
        _logger.info("options:\n%s", pprint.pformat(options, width=self.max_width))
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as sources:
            for name, path in self._named_files():
                try:
                    content = path.read_bytes()
                except OSError as error:
                    _logger.warning("%s is left out of %s: %s", path, self.filename, error)
                    continue
                # A fixed time (the earliest of the format) and mode: the same sources give the same bytes.
                entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
                sources.writestr(entry, content)
        write_bytes(Path(options["workflow_options"]["current_logging_directory"]) / self.filename, archive.getvalue())

    def _named_files(self) -> Iterator[tuple[str, Path]]:
        taken: set[str] = set()
        for folder in self.folders_to_record:
            top, number = folder.resolve().name or "root", 1
            while top in taken:
                number += 1
                top = f"{folder.resolve().name}-{number}"
            taken.add(top)
            for path in self._files(folder):
                yield f"{top}/{path.relative_to(folder).as_posix()}", path

    def _files(self, folder: Path) -> Iterator[Path]:
        for where, folders, names in os.walk(folder, onerror=self._report):
            inside = Path(where)
            folders[:] = sorted(name for name in folders if _may_hold_sources(inside / name))
            for name in sorted(names):
                if name.endswith(self.extensions) and os.path.isfile(inside / name):
                    yield inside / name

    def _report(self, error: OSError) -> None:
        _logger.warning("%s is left out of %s: %s", error.filename, self.filename, error)


def _may_hold_sources(folder: Path) -> bool:
    is_hidden = folder.name.startswith(".") or folder.name in _NOT_SOURCES
    return not is_hidden and not os.path.exists(folder / _IS_ENVIRONMENT)
