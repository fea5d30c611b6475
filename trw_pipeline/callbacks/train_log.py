"""The numbers of every epoch, as a file that any program reads."""

from __future__ import annotations

from pathlib import PurePath

from trw_pipeline.callbacks.row_log import RowLog
from trw_pipeline.reporting.row_files import CsvFile, JsonLinesFile

_FORMATS = {".csv": CsvFile, ".jsonl": JsonLinesFile}


class CallbackTrainLog(RowLog):
    """Writes one row an epoch to `<run folder>/<filename>`: a CSV file with one header, or lines of JSON.

    | column | meaning |
    |---|---|
    | `epoch` | from 0 |
    | `time_s` | wall time in seconds from the start of the epoch to the writing of its row |
    | `learning_rate[<dataset>]` | rate the epoch was trained with; of further parameter groups: `[<dataset>/1]` |
    | `<dataset>/<split>/<output>/<metric>` | as in the history |

    In CSV, a column stays once it is there: where it has no value, the field is empty. A metric that is new widens the
    table by a column at its end. A line of JSON is an object with what this epoch has; its numbers that are not finite
    are the strings "NaN", "Infinity" and "-Infinity". Numbers are written so that reading them gives the same number.

    After each epoch the file is on the disk and closed, so a row of an epoch that ended is there whatever comes. The
    final evaluation is no epoch and has no row. A resumed training goes on in its file, in which each epoch has one
    row; a file of that name that is there before any other training is renamed to `<filename>~`.

    Args:
        filename: name of the file in the run folder; its end, `.csv` or `.jsonl`, says which of the two it is.

    Raises:
        ValueError: the name has another end.
    """

    def __init__(self, filename: str = "trainlog.csv") -> None:
        suffix = PurePath(filename).suffix
        if suffix not in _FORMATS:
            raise ValueError(f"filename must end in one of {', '.join(_FORMATS)}, got {filename!r}")
        super().__init__(filename, _FORMATS[suffix])
