"""The command that makes pages of runs, as a user runs it."""

import re

import pytest
from typer.testing import CliRunner

from trw_pipeline.cli import app
from trw_pipeline.reporting.run_record import RunRecord


def record(folder, error):
    folder.mkdir(parents=True)
    epochs = [{"d": {"valid": {"y": {"error": error}}}}]
    RunRecord(name=folder.name, state="completed", updated=0.0, nb_epochs=1, epochs=epochs).write(folder)


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_page_of_a_run_is_made_in_its_folder_and_its_path_printed(tmp_path):
    record(tmp_path / "r0", 0.5)
    done = report(tmp_path / "r0")
    assert done.exit_code == 0, done.output
    assert done.output == f"{tmp_path / 'r0' / 'report.html'}\n"
    assert "<h1>r0</h1>" in (tmp_path / "r0" / "report.html").read_text(encoding="utf-8")


def test_several_runs_are_compared_in_a_page_that_can_be_named(tmp_path, monkeypatch):
    for name, error in (("r0", 0.5), ("r1", 0.25)):
        record(tmp_path / name, error)
    done = report(tmp_path / "r0", tmp_path / "r1", "--output", tmp_path / "both.html")
    assert done.exit_code == 0, done.output
    assert "<h1>2 runs</h1>" in (tmp_path / "both.html").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert report("r0", "r1").output == "comparison.html\n"
    assert (tmp_path / "comparison.html").is_file()
    assert not list(tmp_path.glob("r*/report.html"))


def test_a_run_with_only_a_log_has_a_page(tmp_path):
    (tmp_path / "trainlog.csv").write_text("epoch,time_s,d/valid/y/error\n0,1.5,0.5\n")
    assert report(tmp_path).exit_code == 0
    assert "y · error" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_what_is_no_run_is_one_clear_line(tmp_path, name):
    (tmp_path / "empty").mkdir()
    done = report(tmp_path / name)
    assert done.exit_code == 2
    words = " ".join(re.sub(r"[│╭╮╰╯─]", "", done.output).split())
    assert "must have report.json (of CallbackReport) or trainlog.csv (of CallbackTrainLog)" in words
    assert "Traceback" not in done.output


def test_an_output_that_can_not_be_written_is_one_clear_line(tmp_path):
    record(tmp_path / "r0", 0.5)
    done = report(tmp_path / "r0", "--output", tmp_path / "absent" / "x.html")
    assert done.exit_code == 2
    assert "No such file" in done.output
