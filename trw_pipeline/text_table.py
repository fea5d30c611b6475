"""Tables of plain text, for logs as well as for terminals."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def text_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], nb_names: int = 1) -> str:
    """Lay out a table, as wide as it needs to be, without colours.

    Args:
        title: first line.
        columns: headers.
        rows: cells, one for each column; what is more is left out.
        nb_names: so many first columns are aligned to the left, the others to the right.

    Returns:
        The lines.
    """
    table = Table(title=title, title_justify="left", title_style="none", box=SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < nb_names else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row[: len(columns)])
    # The sink may be a file as well as a terminal.
    console = Console(file=io.StringIO(), width=1000, color_system=None, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
