"""Files of rows: what was written can be read, and later rows can be undone."""

import json
import math
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_logs import events_of, json_lines_of, table_of

from trw_pipeline.errors import MissingExtraError
from trw_pipeline.reporting.row_files import CsvFile, EventFile, JsonLinesFile

names = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)
rows = st.lists(st.dictionaries(names, st.floats(), min_size=1, max_size=4), min_size=1, max_size=5)
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)


def as_floats(rows):
    return [{name: float(value) for name, value in row.items() if value != ""} for row in rows]


def read_any(kind, path):
    return events_of(path) if kind is EventFile else path.read_bytes()


def written(kind, path, rows):
    path.unlink(missing_ok=True)
    file = kind(path)
    for row in rows:
        file.append(row)
    return file


def same(one, other):
    """Equal, where NaN equals NaN."""
    return repr([sorted(row.items()) for row in one]) == repr([sorted(row.items()) for row in other])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "read"), [(CsvFile, table_of), (JsonLinesFile, json_lines_of)])
@in_one_folder
@given(rows)
def test_every_number_reads_back_as_itself_under_its_name(tmp_path, kind, read, rows):
    """LOG-2."""
    written(kind, tmp_path / "file", rows)
    assert same(as_floats(read(tmp_path / "file")), rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CsvFile, JsonLinesFile, EventFile])
@in_one_folder
@given(rows, rows)
def test_rows_that_are_undone_leave_the_file_as_it_was(tmp_path, kind, before, after):
    """LOG-3, as a checkpoint does it: the shape first, then the length; by another object than the one that wrote."""
    before, after = ([{"epoch": i, **row} for i, row in enumerate(rows)] for rows in (before, after))
    path = tmp_path / "file.tfevents"
    file = written(kind, path, before)
    shape, content = file.shape(), path.read_bytes()
    for row in after:
        file.append(row)
    expected = read_any(kind, path)
    resumed = kind(path)
    resumed.cut(shape)
    with path.open("r+b") as opened:
        opened.truncate(len(content))
    assert path.read_bytes() == content
    assert resumed.shape() == shape
    for row in after:
        resumed.append(row)
    assert repr(read_any(kind, path)) == repr(expected)  # NaN equals NaN


def test_json_lines_are_json_to_the_letter(tmp_path):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    row = {"epoch": 0, "a": math.nan, "b": math.inf, "c": -math.inf, "d\u2028": 0.1}
    written(JsonLinesFile, tmp_path / "log.jsonl", [row, row])
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    expected = {"epoch": 0, "a": "NaN", "b": "Infinity", "c": "-Infinity", "d\u2028": 0.1}
    assert [json.loads(line, parse_constant=refuse) for line in lines] == [expected] * 2


def test_tensorboard_reads_the_scalars(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = [
        {"epoch": 0, "d/train/y/loss": 0.5},
        {"epoch": 1, "d/train/y/loss": 0.25, "d/valid/y/classification error": 1},
    ]
    written(EventFile, tmp_path / "events.out.tfevents.x", rows)
    shown = EventAccumulator(str(tmp_path)).Reload()
    scalars = {tag: [(s.step, s.value) for s in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}
    assert scalars == {"d/train/y/loss": [(0, 0.5), (1, 0.25)], "d/valid/y/classification error": [(1, 1.0)]}


def test_without_tensorboard_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'trw_pipeline\[tensorboard\]'"):
        EventFile(tmp_path / "events.out.tfevents.x")
