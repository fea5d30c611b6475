"""A cache in files: complete or absent, shared, and never older than what it was made of."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

from trw_pipeline.sequences.cache_store import packed, unpacked
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

NB = 6


@pytest.fixture
def opened():
    """Closes the chains that are handed to it when the test ends."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


def tenfold(batch):
    return {"x": 10 * batch["x"], "volume": np.arange(5000)[None]}


def chain(folder, function=tenfold, **options):
    source = SequenceArray({"x": np.arange(NB)}, SamplerSequential())
    return source.map(function).cache(folder=folder, **options)


def numbers(items):
    return [int(item["x"][0]) for item in items]


def figures(cached):
    return next(figures for figures in cached.statistics().values() if "served" in figures)


def files_of(folder):
    return sorted(folder.glob("*/*.sample"))


def test_another_sequence_finds_what_one_has_made(tmp_path, opened):
    for nb_served in (0, NB):
        with chain(tmp_path) as cached:
            assert numbers(cached) == [10 * x for x in range(NB)]
            assert figures(cached)["served"] == nb_served
            assert figures(cached)["kept"] == NB
            assert figures(cached)["kept_bytes"] == sum(file.stat().st_size for file in files_of(tmp_path))
    assert len(files_of(tmp_path)) == NB


def cut_short(file):
    file.write_bytes(file.read_bytes()[:-100])


def emptied(file):
    file.write_bytes(b"")


def one_byte_changed(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def replaced(file):
    file.write_bytes(b"somebody else's" * 100)


def a_folder(file):
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [cut_short, emptied, one_byte_changed, replaced])
def test_a_damaged_file_is_made_again_with_a_warning(damage, tmp_path, opened, caplog):
    """LOG-6."""
    list(opened(chain(tmp_path)))
    whole = {file: file.read_bytes() for file in files_of(tmp_path)}
    damaged = files_of(tmp_path)[2]
    damage(damaged)
    again = opened(chain(tmp_path))
    assert numbers(again) == [10 * x for x in range(NB)]
    assert figures(again)["served"] == NB - 1
    assert f"the cached result {damaged} is damaged; it is made again" in caplog.text
    assert {file: file.read_bytes() for file in files_of(tmp_path)} == whole


def test_a_file_that_can_be_neither_read_nor_written_does_not_end_the_epoch(tmp_path, opened, caplog):
    list(opened(chain(tmp_path)))
    a_folder(files_of(tmp_path)[2])
    assert numbers(opened(chain(tmp_path))) == [10 * x for x in range(NB)]
    assert "can not be read" in caplog.text
    assert "can not be cached" in caplog.text


def test_files_of_others_are_left_alone(tmp_path, opened):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "0123.sample").write_text("mine, too")
    cached = opened(chain(tmp_path, max_bytes=50_000))
    list(cached)
    (version,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (version / "model.pt").write_text("also mine")
    list(cached)
    list(opened(chain(tmp_path, lambda batch: batch)))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "0123.sample").read_text() == "mine, too"
    assert (version / "model.pt").read_text() == "also mine"


def test_no_half_written_file_is_left(tmp_path, opened):
    list(opened(chain(tmp_path)))
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".sample"}


def test_the_bound_counts_what_earlier_runs_have_kept(tmp_path, opened):
    one = 5000 * 8 + 1000
    list(opened(chain(tmp_path, max_bytes=2 * one)))
    assert len(files_of(tmp_path)) == 2
    list(opened(chain(tmp_path, max_bytes=3 * one)))
    assert len(files_of(tmp_path)) == 3


def test_a_changed_closure_value_or_default_serves_nothing_stale(tmp_path, opened):
    def times(number):
        return lambda batch, more=0: {"x": number * batch["x"] + more}

    changed = times(2)
    changed.__defaults__ = (1,)
    for _ in range(2):
        for function, number, more in ((times(2), 2, 0), (times(3), 3, 0), (changed, 2, 1)):
            assert numbers(opened(chain(tmp_path, function))) == [number * x + more for x in range(NB)]


def test_changed_code_in_a_module_that_is_imported_again_serves_nothing_stale(tmp_path, opened, monkeypatch):
    """LOG-6."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    try:
        for number in (2, 3, 2):
            (tmp_path / "users_loading.py").write_text(f"def load(batch):\n    return {{'x': {number} * batch['x']}}\n")
            sys.modules.pop("users_loading", None)
            importlib.invalidate_caches()
            load = importlib.import_module("users_loading").load
            cached = opened(chain(tmp_path / "cache", load))
            assert numbers(cached) == [number * x for x in range(NB)]
        assert figures(cached)["served"] == NB
    finally:
        sys.modules.pop("users_loading", None)


PROGRAM = """
import sys
import numpy as np
from trw_pipeline import SamplerRandom, SequenceArray

def load(batch):
    return {"x": 10 * batch["x"], "volume": np.arange(20000)[None] + batch["x"][0]}

if __name__ == "__main__":
    source = SequenceArray({"x": np.arange(40)}, SamplerRandom()).with_seed(int(sys.argv[2]))
    with source.map(load).cache(folder=sys.argv[1], compression="lz4") as cached:
        for epoch in range(2):
            items = [(int(i["x"][0]), int(i["volume"].sum())) for i in cached]
            assert sorted(items) == [(10 * x, 199990000 + 20000 * x) for x in range(40)], items
        print(list(cached.statistics().values())[1]["jobs_done"])
"""


@pytest.mark.slow
def test_two_processes_share_a_folder_and_a_third_finds_all(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def run(seed):
        command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "cache"), str(seed)]
        return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    for seeds, at_most in (((1, 2), 80), ((3,), 0)):
        processes = [run(seed) for seed in seeds]
        for process in processes:
            out, err = process.communicate(timeout=100)
            assert err == ""
            assert int(out) <= at_most
    assert len(files_of(tmp_path / "cache")) == 40


@pytest.mark.parametrize("sizes", [[], [0], [1], [64, 0, 63, 65, 1000], [16_384]])
def test_frames_come_back_from_a_blob(sizes):
    frames = [os.urandom(size) for size in sizes]
    assert [bytes(frame) for frame in unpacked(bytearray(packed(frames)))] == frames


def test_a_folder_is_made_when_an_epoch_opens_not_before(tmp_path, opened):
    cached = opened(chain(tmp_path / "a" / "b"))
    assert not (tmp_path / "a").exists()
    list(cached)
    assert len(files_of(tmp_path / "a" / "b")) == NB
