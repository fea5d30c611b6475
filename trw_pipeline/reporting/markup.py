"""HTML that is made of elements: whatever text comes from data is shown, and never obeyed."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import TypeAlias, cast


class Markup(str):
    """Text that is HTML already; only `element` and its like make it."""

    __slots__ = ()


Child: TypeAlias = "str | float | Iterable[Child] | None"
"""What an element holds. A `Markup` stays as it is, any other text is escaped, None is nothing."""

_EMPTY = frozenset({"br", "col", "img", "link", "meta"})
"""Elements that have no end."""


def element(tag: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Make an element of HTML or SVG.

    Args:
        tag: its name.
        *children: what is in it, in order.
        **attributes: name -> value. `_` stands for `-` in names, and one at the end of a name is left out (`class_`).
            True is an attribute without a value; one that is None or False is not there.

    Returns:
        The element, in which every text and every value is escaped.

    Example:
        >>> element("p", "1 < 2 ", element("b", "&"), class_="note", hidden=True, id=None)
        '<p class="note" hidden>1 &lt; 2 <b>&amp;</b></p>'
    """
    written: list[str] = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        written.append(f" {name}" if value is True else f' {name}="{html.escape(str(value))}"')
    start = f"<{tag}{''.join(written)}>"
    return Markup(start if tag in _EMPTY else f"{start}{join(children)}</{tag}>")


def join(children: Child) -> Markup:
    """Put children one after the other, without an element around them."""
    if children is None:
        return Markup()
    if isinstance(children, Markup):
        return children
    if isinstance(children, (str, int, float)):
        return Markup(html.escape(str(children)))
    return Markup("".join(map(join, children)))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Child | tuple[Child, float | None]]], label: str, nb_names: int = 1
) -> Markup:
    """Make a table whose rows are sorted by a click on the name of a column.

    Args:
        columns: their names.
        rows: the cells of each row. A pair is (what is shown, the number to sort by); a number is sorted by itself.
        label: what the table is, for those who do not see it.
        nb_names: so many columns on the left hold words; the others hold numbers, which stand on the right.

    Returns:
        The table, in a box of its own that can be scrolled if it is wider than the page.
    """

    def cell(number: int, value: Child | tuple[Child, float | None]) -> Markup:
        shown, key = cast("tuple[Child, float | None]", value) if isinstance(value, tuple) else (value, None)
        key = value if isinstance(value, (int, float)) else key
        return element(
            "td" if number else "th",
            shown,
            scope=None if number else "row",
            class_=None if number < nb_names else "number",
            data_key=None if key is None else repr(float(key)),
        )

    head = [
        element("th", element("button", name, type="button"), scope="col", class_=None if i < nb_names else "number")
        for i, name in enumerate(columns)
    ]
    body = [element("tr", [cell(i, value) for i, value in enumerate(row)]) for row in rows]
    whole = element("table", element("thead", element("tr", head)), element("tbody", body))
    return _box(whole, label)


def plain_table(rows: Iterable[tuple[str, Child]], label: str) -> Markup:
    """Make a table of names and what they stand for, in a box like that of `table`."""
    lines = [element("tr", element("th", name, scope="row"), element("td", value)) for name, value in rows]
    return _box(element("table", element("tbody", lines), class_="pairs"), label)


def _box(content: Markup, label: str) -> Markup:
    return element("div", content, class_="scroll", tabindex=0, role="region", aria_label=label)


def page(title: str, body: Child, refresh_s: float | None = None) -> str:
    """Make a whole page: one file that loads nothing, from no network and no disk.

    A policy in its head lets the browser run the one script in it, and nothing that came with data.

    Args:
        title: of the page.
        body: what is in it.
        refresh_s: seconds after which the browser reads the file again; None: never.
    """
    style, script = (Markup(_read(name)) for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        None if refresh_s is None else element("meta", http_equiv="refresh", content=f"{refresh_s:g}"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", style),
    ]
    whole = element("html", element("head", head), element("body", body, element("script", script)), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _read(name: str) -> str:
    return (resources.files("trw_pipeline.reporting") / name).read_text(encoding="utf-8")
