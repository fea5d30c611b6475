"""The loop fits on a screen."""

import ast
import inspect
import io
import tokenize
from types import ModuleType

import pytest

import trw_pipeline.trainer
import trw_pipeline.training.loop
import trw_pipeline.training.optimization
import trw_pipeline.training.split

LOOP = (
    trw_pipeline.trainer,
    trw_pipeline.training.loop,
    trw_pipeline.training.optimization,
    trw_pipeline.training.split,
)
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(source: str) -> set[int]:
    """The numbers of the lines that have code: neither comments, blank lines, nor docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return lines


def test_lines_of_code_are_counted_without_comments_blanks_and_docstrings():
    source = """'''Doc.

    More.'''


def f(
    a,  # why
):
    "Doc."
    # a comment

    return '''text
    text'''
"""
    assert lines_of_code(source) == {6, 7, 8, 12, 13}


@pytest.mark.parametrize("module", LOOP, ids=lambda module: module.__name__)
def test_a_module_of_the_loop_has_at_most_300_lines_of_code_and_a_function_60(module: ModuleType):
    """T52."""
    source = inspect.getsource(module)
    lines = lines_of_code(source)
    assert len(lines) <= 300
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            length = len(lines & set(range(node.lineno, node.end_lineno + 1)))
            assert length <= 60, f"{node.name} has {length} lines of code"
