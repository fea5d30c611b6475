"""Programs that are killed, or told to stop, at any moment of a training, and go on."""

from __future__ import annotations

import csv
import logging
import random
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from toy_resume import is_of_time

TRAINING = """
    import sys, time
    sys.path.insert(0, {tests!r})
    import torch
    import toy_resume
    from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
    from trw_pipeline.training.callback import Callback

    class Says(Callback):
        nb_batches = 0

        def on_batch_start(self, run):
            self.nb_batches += 1
            print(f"{{self.nb_batches}}.\\nbatch", run.epoch, run.split, run.batch_index, flush=True)
            while self.nb_batches == {told_by} and checkpoint._signals._came is None:
                time.sleep(0.001)

    folder = toy_resume.Path({folder!r})
    # One that was killed before its first checkpoint is begun anew, in a folder of its own.
    begun = [run for run in folder.glob("default_r*") if list(run.glob("checkpoints/*.pt"))]
    checkpoint = CallbackCheckpoint({checkpoint})
    print("begin", flush=True)
    toy_resume.fit(
        folder,
        toy_resume.of_sequences({nb_workers}),
        checkpoint=checkpoint,
        extra=[Says()],
        seed=3,
        num_epochs=4,
        resume=begun[0] if begun else None,
    )
    print("end", flush=True)
"""


def source(folder: Path, nb_workers: int, checkpoint: str = "", told_by: int = 0) -> str:
    """The program; in the batch `told_by` it waits for a signal, if none has come."""
    tests = str(Path(__file__).parent)
    return TRAINING.format(
        tests=tests, folder=str(folder), nb_workers=nb_workers, checkpoint=checkpoint, told_by=told_by
    )


@pytest.fixture
def temporary(monkeypatch) -> None:
    """A folder for the sockets of programs that are killed before a worker knows of them: nobody removes those."""
    folder = tempfile.mkdtemp(prefix="k-")  # short: sockets are made in it
    monkeypatch.setenv("TMPDIR", folder)


def finished(program, folder: Path, nb_workers: int, checkpoint: str = "") -> tuple[list[list[str]], dict]:
    """Runs the training to its end, however often it was begun, and returns its log and its last checkpoint."""
    result = program(source(folder, nb_workers, checkpoint)).finish(60)
    assert result.returncode == 0, result.stderr
    (final,) = folder.glob("default_r*/checkpoints/final.pt")
    run = final.parents[1]
    with (run / "trainlog.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    of_time = [number for number, name in enumerate(rows[0]) if is_of_time(name)]
    log = [[value for n, value in enumerate(row) if n not in of_time] for row in rows]
    return log, torch.load(final, weights_only=True)


def check_same(one, other) -> None:
    assert one[0] == other[0]
    assert all(torch.equal(one[1]["model"][name], other[1]["model"][name]) for name in one[1]["model"])


def pytest_generate_tests(metafunc) -> None:
    if "kill_round" in metafunc.fixturenames:
        metafunc.parametrize("kill_round", range(metafunc.config.getoption("--kill-rounds")))


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize("nb_workers", [0, 1, 2])
def test_a_training_that_is_killed_at_random_goes_on_to_the_same_end(
    program, programs_ended_by, tmp_path, nb_workers, kill_round
):
    """T19, T22, RES-1: the log is the same byte for byte, but for times; so are the weights.

    Killed within 50 ms of a moment of the training, not of the program: on a slow machine most of its time is not
    training. `--kill-rounds 10 --log-file kills.log --log-file-level INFO` makes 210 kills, and a list of them.
    """
    checkpoint = f"every_n_steps={1 + kill_round % 3}"
    expected = finished(program, tmp_path / "whole", nb_workers, checkpoint)
    generator = random.Random(3 * kill_round + nb_workers)
    folder, words, nb_killed = tmp_path / "killed", [], 0
    # Each trial goes on with what the one before has left; so they come one after the other.
    for trial in range(7):
        if list(folder.glob("default_r*/checkpoints/final.pt")):
            check_same(expected, finished(program, folder, nb_workers, checkpoint))
            folder = tmp_path / f"killed, from trial {trial}"
        # One that is not at its end has seven batches before it, those of the final evaluation, if no more.
        words.append(generator.choice(["begin", *(f"{number}." for number in range(1, 8))]))
        moment = (words[-1], generator.uniform(0, 0.05))
        (ended,) = programs_ended_by(source(folder, nb_workers, checkpoint), signal.SIGKILL, [moment])
        assert ended.code in (0, -signal.SIGKILL), ended.errors  # 0: it was faster
        nb_killed += ended.code != 0
    check_same(expected, finished(program, folder, nb_workers, checkpoint))
    told = "%d workers, %s, %d killed, by batches %s"
    logging.getLogger(__name__).info(told, nb_workers, checkpoint, nb_killed, words)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_training_that_is_told_to_stop_loses_no_batch(program, programs_ended_by, tmp_path, number):
    """STOP-5, RES-1: a complete checkpoint of that moment is there, within the epoch."""
    expected = finished(program, tmp_path / "whole", 1)
    generator = random.Random(number)
    for trial in range(4):
        folder = tmp_path / f"stopped {trial}"
        moment = (f"{generator.randint(1, 20)}.", generator.uniform(0, 0.01))
        (ended,) = programs_ended_by(source(folder, 1, told_by=21), number, [moment])
        assert ended.code == (128 + number if number == signal.SIGTERM else -number), ended.errors
        seen = [line for line in ended.said.splitlines() if line.startswith("batch")]
        last = torch.load(folder / "default_r0" / "checkpoints" / "last.pt", weights_only=True)
        if last["split"] is not None:
            place = f"batch {last['epoch']} {last['split']['split']} {last['split']['batch_index'] - 1}"
            assert place == seen[-1] or last["split"]["batch_index"] == 0
        check_same(expected, finished(program, folder, 1))
