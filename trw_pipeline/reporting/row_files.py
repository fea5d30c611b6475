"""Files that grow by one row at a time: a table in CSV, lines of JSON, events for TensorBoard.

After each row the file is complete, on the disk, and closed.
"""

from __future__ import annotations

import csv
import io
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from trw_pipeline.errors import MissingExtraError
from trw_pipeline.files import append_bytes, write_text

Row: TypeAlias = Mapping[str, float]
"""Name -> value; of the rows of one file each may have other names."""


class RowFile(ABC):
    """A file of rows.

    Args:
        path: the file; its folder must exist. Rows that are there stay.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def append(self, row: Row) -> None:
        """Write a row.

        Raises:
            OSError: it can not be written; a part of the row may be at the end of the file.
        """

    def shape(self) -> dict[str, int]:
        """Give what `cut` needs in order to undo later rows, beside the length of the file; here nothing."""
        return {}

    def cut(self, shape: Mapping[str, int]) -> None:  # noqa: B027 (not every file has something to do)
        """Undo what later rows did to what is before them; here nothing: their own bytes are cut off by their number.

        Args:
            shape: as `shape` gave it.
        """


class CsvFile(RowFile):
    """A table with one header.

    A name that is new gives the table a column at its end; where a row has no value, the field is empty. The file is
    then replaced by a wider one, atomically. A number is the shortest text that reads back as the same number.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._columns: list[str] | None = None  # None: not read yet
        self._nb_lines = 0

    def append(self, row: Row) -> None:
        """Write a row."""
        columns = self._read_columns()
        new = [name for name in row if name not in columns]
        values = [row.get(name, "") for name in (*columns, *new)]
        if new:
            blanks = [""] * len(new)
            older = [line + blanks for line in _read(self.path)[1:]]
            write_text(self.path, _as_csv([[*columns, *new], *older, values]))
        else:
            append_bytes(self.path, _as_csv([values]).encode())
        self._columns = [*columns, *new]
        self._nb_lines = max(self._nb_lines, 1) + 1

    def shape(self) -> dict[str, int]:
        """Give how many lines and columns the table has, with its header."""
        nb_columns = len(self._read_columns())
        return {"nb_lines": self._nb_lines, "nb_columns": nb_columns}

    def cut(self, shape: Mapping[str, int]) -> None:
        """Take out the lines and the columns that came since."""
        table = _read(self.path)
        kept = [line[: shape["nb_columns"]] for line in table[: shape["nb_lines"]]]
        if kept != table:
            write_text(self.path, _as_csv(kept))
        self._columns = None

    def _read_columns(self) -> list[str]:
        if self._columns is None:
            table = _read(self.path)
            self._columns, self._nb_lines = (table[0] if table else []), len(table)
        return self._columns


class JsonLinesFile(RowFile):
    """A line for each row: a JSON object with the names that this row has.

    A number is the shortest text that reads back as the same number. JSON has none that are not finite: they are the
    strings "NaN", "Infinity" and "-Infinity", as Protocol Buffers write them; `float` reads them.
    """

    def append(self, row: Row) -> None:
        """Write a row."""
        line = json.dumps(
            {name: value if math.isfinite(value) else _NOT_FINITE[str(value)] for name, value in row.items()}
        )
        append_bytes(self.path, f"{line}\n".encode())


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class EventFile(RowFile):
    """Scalars that TensorBoard shows, in float32; the value `epoch` of a row is their step.

    What TensorBoard's usual writers do not promise holds here: one file, whose rows can be cut off, and no thread.

    Args:
        path: the file; "tfevents" must be part of its name.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._protocol = event_protocol()

    def append(self, row: Row) -> None:
        """Write a row, as one event."""
        now = time.time()  # TensorBoard wants a date; the clock of the training is in `time_s`
        scalars = {name: value for name, value in row.items() if name != "epoch"}
        values = [self._protocol.Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        summary = self._protocol.Summary(value=values)
        event = self._protocol.Event(wall_time=now, step=int(row["epoch"]), summary=summary)
        is_new = not self.path.exists() or not self.path.stat().st_size
        append_bytes(self.path, event_records([event], is_new))


class EventProtocol(NamedTuple):
    """What events for TensorBoard are made of."""

    Event: Any
    Summary: Any
    RecordWriter: Any


def event_protocol() -> EventProtocol:
    """Load it.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # noqa: PLC0415 (optional)
        from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise MissingExtraError("a log for TensorBoard", "tensorboard") from error
    messages: tuple[Any, Any] = (event_pb2, summary_pb2)
    return EventProtocol(messages[0].Event, messages[1].Summary, RecordWriter)


def event_records(events: Iterable[Any], is_first: bool) -> bytes:
    """Give the bytes of events as they lie in a file.

    Args:
        events: what is to be written.
        is_first: whether they begin the file, which then says first what it is.
    """
    protocol = event_protocol()
    records = io.BytesIO()
    writer = protocol.RecordWriter(records)
    if is_first:
        writer.write(protocol.Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
    for event in events:
        writer.write(event.SerializeToString())
    return records.getvalue()


def _read(path: Path) -> list[list[str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def _as_csv(lines: Iterable[Sequence[str | float]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)  # a float as its `repr`
    return text.getvalue()
