"""The main job as a user runs it: a process of its own, on real data."""

import csv
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from trw_pipeline.reporting.run_record import read_run

COMMAND = [sys.executable, "-m", "trw_pipeline", "train"]
TRAIN = [*COMMAND, "mnist"]

pytestmark = pytest.mark.timeout(300)


def train(*arguments: str, **keywords) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TRAIN, *arguments], capture_output=True, text=True, timeout=280, **keywords)


def accuracy_of(output: str) -> float:
    return float(re.search(r"test accuracy: (\d\.\d+)", output)[1])


def metrics_of(run: Path) -> list[dict[str, str]]:
    """The rows of the log without what depends on the clock."""
    with (run / "trainlog.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    timed = ("time_s", "samples_per_s", "wait_s", "wait_share")
    return [{name: value for name, value in row.items() if not name.endswith(timed)} for row in rows]


@pytest.mark.parametrize(("example", "more"), [("mnist", ["--reservoir"]), ("brain", [])])
def test_help_names_every_option(example, more):
    text = subprocess.run([*COMMAND, example, "--help"], capture_output=True, text=True, timeout=60).stdout
    options = "--epochs --batch-size --nb-workers --backend --seed --device --output --resume"
    assert not [option for option in [*options.split(), *more] if option not in text]


def test_a_wrong_option_is_one_clear_line(tmp_path):
    done = train("--batch-size", "0", "--output", str(tmp_path))
    assert done.returncode == 2
    assert "--batch-size" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--device", "gpu0"], "gpu0"),
        (["--output", "/proc/nope"], "/proc/nope"),
        (["--reservoir", "--nb-workers", "0"], "nb_workers"),
        (["--resume", "."], "resume must be the folder of a run of train mnist"),
    ],
)
@pytest.mark.slow
def test_what_can_not_work_is_one_clear_line_before_any_work(tmp_path, arguments, word):
    done = train(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert word in " ".join(re.sub(r"[│╭╮╰╯─]", "", done.stderr).split()), "in a box, perhaps, of several lines"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_default_options_reach_95_percent_and_leave_the_promised_files(tmp_path):
    done = train("--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert accuracy_of(done.stdout) >= 0.95
    paths = dict(re.findall(r"^(\S+): (/.+)$", done.stdout, re.MULTILINE))
    assert set(paths) == {"trainlog.csv", "history", "report.html", "last.model"}
    assert f"run folder: {tmp_path}/mnist_r0" in done.stdout
    assert Path(paths["last.model"]).stat().st_size > 100_000
    assert list(Path(paths["history"]).glob("*.png"))
    record = read_run(Path(paths["report.html"]).parent)
    assert (record.state, len(record.epochs)) == ("completed", 5)
    assert list(record.stages) == ["mnist/train", "mnist/test"]
    assert done.stdout.count("waited for data") == 2 * len(metrics_of(Path(paths["trainlog.csv"]).parent))
    assert "\x1b[" not in done.stdout, "no terminal, no escape sequences"


@pytest.mark.slow
@pytest.mark.timeout(300)  # several whole trainings
def test_same_seed_gives_the_same_numbers_with_any_number_of_workers(tmp_path):
    logs = []
    for number, workers in enumerate((["--nb-workers", "0"], ["--nb-workers", "1"], ["--nb-workers", "3"])):
        done = train("--epochs", "1", "--seed", "5", *workers, "--output", str(tmp_path))
        assert done.returncode == 0, done.stderr
        logs.append((accuracy_of(done.stdout), metrics_of(tmp_path / f"mnist_r{number}")))
    assert logs[0] == logs[1] == logs[2]
    done = train("--epochs", "1", "--seed", "6", "--output", str(tmp_path))
    assert metrics_of(tmp_path / "mnist_r3") != logs[0][1], "another seed, other numbers"


@pytest.mark.slow
@pytest.mark.timeout(300)  # several whole trainings
def test_threads_give_the_same_numbers_because_the_augmentation_takes_rng(tmp_path):
    for arguments in (["--backend", "thread"], ["--backend", "inline"]):
        done = train("--epochs", "1", *arguments, "--output", str(tmp_path))
        assert done.returncode == 0, done.stderr
    assert metrics_of(tmp_path / "mnist_r0") == metrics_of(tmp_path / "mnist_r1")


@pytest.mark.slow
def test_the_reservoir_trains_too(tmp_path):
    done = train("--reservoir", "--epochs", "2", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert accuracy_of(done.stdout) > 0.5


@pytest.mark.slow
def test_a_terminal_gets_a_bar_and_a_table(tmp_path):
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [*TRAIN, "--epochs", "1", "--output", str(tmp_path)],
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(terminal)
    shown = b""
    while process.poll() is None or select.select([main], [], [], 0)[0]:
        if select.select([main], [], [], 1)[0]:
            try:
                shown += os.read(main, 65536)
            except OSError:  # the other end is closed
                break
    os.close(main)
    text = shown.decode()
    assert process.wait(timeout=30) == 0
    assert re.search(r"/63\b", text), "the bar counts the 63 batches"
    assert re.search(r"dataset +split +loss +error +samples/s +waited", text), "the epoch is a table"
    assert text.rstrip().endswith("last.model")


@pytest.mark.slow
def test_the_brain_is_segmented_and_scored(tmp_path):
    """One epoch alone: what matters is that the whole of it runs, with a worker, on files that are written first."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [*COMMAND, "brain", "--epochs", "1", "--nb-workers", "1", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr
    (row,) = metrics_of(tmp_path / "brain_r0")
    assert row["brain/train/info/nb_samples"] == "64.0"
    scores = dict(re.findall(r"^dice of (\w+) matter: (\d\.\d{4})$", done.stdout, re.MULTILINE))
    shown = {name: f"{float(row[f'brain/test/tissue/dice {n}']):.4f}" for n, name in ((1, "grey"), (2, "white"))}
    assert scores == shown, "after the only epoch the final evaluation finds the same"


KILLED = """
    import os
    import signal
    import sys
    from rich.console import Console
    from trw_pipeline.cli import main

    show = Console.print

    def show_and_die(console, text, **keywords):
        show(console, text, **keywords)
        if "epoch 1" in str(text):  # a table, too, is shown on a console
            os.kill(os.getpid(), signal.SIGKILL)

    if __name__ == "__main__":
        Console.print = show_and_die
        sys.argv = ["trw-pipeline", *{arguments!r}]
        main()
"""


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_to_the_same_end(program, tmp_path, monkeypatch):
    """T19: the folder of the run is all that has to be told; its log is then that of a run that was never killed."""
    options = ["--epochs", "2", "--batch-size", "200", "--nb-workers", "1", "--seed", "4"]
    with tempfile.TemporaryDirectory(prefix="k-") as temporary:  # nobody removes the sockets of what is killed
        monkeypatch.setenv("TMPDIR", temporary)
        killed = program(KILLED.format(arguments=["train", "mnist", *options, "--output", "killed"])).finish(120)
    monkeypatch.undo()
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = train("--resume", str(tmp_path / "killed" / "mnist_r0"))
    assert again.returncode == 0, again.stderr
    whole = train(*options, "--output", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    assert accuracy_of(again.stdout) == accuracy_of(whole.stdout)
    log = metrics_of(tmp_path / "killed" / "mnist_r0")
    assert [row["epoch"] for row in log] == ["0", "1"]
    assert log == metrics_of(tmp_path / "whole" / "mnist_r0")
    assert [path.name for path in (tmp_path / "killed").iterdir()] == ["mnist_r0"]
    record = read_run(tmp_path / "killed" / "mnist_r0")
    assert (record.state, len(record.epochs)) == ("completed", 2)


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Sends Ctrl-C to the process group, and checks that all of it is gone within seconds."""
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    return output, errors


def start_training(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*TRAIN, "--epochs", "50", "--output", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_ctrl_c_in_training_keeps_what_was_logged(tmp_path):
    process = start_training(tmp_path)
    assert process.stdout is not None
    while "epoch 1" not in process.stdout.readline():
        assert process.poll() is None
    output, errors = interrupt(process)
    assert process.returncode == 130, errors
    assert "Interrupted" in output
    assert "Traceback" not in errors
    assert [row["epoch"] for row in metrics_of(tmp_path / "mnist_r0")][:1] == ["0"]


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.01, 0.1, 0.3])
def test_ctrl_c_while_workers_start_leaves_none_and_no_traceback(tmp_path, delay_s):
    process = start_training(tmp_path)
    # From the first child on: while torch is imported, which comes before, torch itself may swallow a Ctrl-C.
    while not psutil.Process(process.pid).children():
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.02)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=delay_s)
    output, errors = interrupt(process)
    assert process.returncode == 130, errors
    assert "Interrupted" in output
    assert "Traceback" not in errors
