"""Every code block of the README runs, and prints what the README says."""

import contextlib
import io
import shlex
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def run(example: Example) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example.parsed, f"README.md:{example.line}", "exec"), example.namespace)
    example.namespace["_printed"] = printed.getvalue()


def compare(example: Example) -> None:
    assert example.namespace.pop("_printed").strip() == example.parsed.strip(), f"README.md:{example.line}"


@pytest.mark.slow
def test_every_python_block_prints_what_the_readme_shows():
    parsers = [CodeBlockParser("python", run), CodeBlockParser("text", compare)]
    document = Sybil(parsers=parsers).parse(README)
    examples = list(document.examples())
    for example in examples:
        example.evaluate()
    assert len(examples) == 2 * sum(line == "```python" for line in README.read_text().splitlines())


def test_the_test_command_is_what_ci_runs():
    commands = [line for line in README.read_text().splitlines() if line.startswith("python -m pip")]
    assert [command.rpartition("&& ")[2] for command in commands] == [
        "python -m trw_pipeline train mnist",
        "python -m pytest",
    ]
    assert all(shlex.split(command)[3:6] == ["install", "-c", "constraints.txt"] for command in commands)
    assert "README.md" in (ROOT / ".ci" / "run").read_text(), "ci takes the command from the README"


def test_constraints_hold_no_address_and_pin_torch():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert "torch==2.13.0" in lines
    assert not [line for line in lines if "://" in line or "@" in line]
