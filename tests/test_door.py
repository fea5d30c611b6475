"""The door is lazy, complete, and says the same twice."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import trw_pipeline


def names_for_type_checkers() -> dict[str, str]:
    tree = ast.parse(Path(inspect.getfile(trw_pipeline)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        assert node.module is not None
        for alias in node.names:
            assert alias.asname == alias.name, f"{alias.name} must be re-exported under its own name"
            found[alias.name] = node.module.removeprefix("trw_pipeline.")
    return found


def test_the_two_tables_of_the_door_are_equal():
    assert names_for_type_checkers() == trw_pipeline._FILE_OF


@pytest.mark.parametrize("name", trw_pipeline.__all__)
def test_every_public_name_is_what_its_file_defines(name):
    module = importlib.import_module(f"trw_pipeline.{trw_pipeline._FILE_OF[name]}")
    value = getattr(trw_pipeline, name)
    assert value is getattr(module, name)
    assert getattr(value, "__module__", module.__name__) == module.__name__, "a name has one home"


def test_all_is_sorted_and_listed_by_dir():
    assert sorted(trw_pipeline.__all__) == trw_pipeline.__all__
    assert set(trw_pipeline.__all__) <= set(dir(trw_pipeline))


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="no attribute 'SequenceNonsense'"):
        _ = trw_pipeline.SequenceNonsense


@pytest.mark.parametrize("statement", ["import trw_pipeline", "from trw_pipeline import SequenceArray, JobExecutor"])
def test_building_chains_imports_neither_torch_nor_matplotlib(statement):
    script = f"{statement}\nimport sys\nprint([m for m in ('torch', 'matplotlib', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
