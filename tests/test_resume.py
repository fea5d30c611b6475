"""A training that was broken off goes on as if nothing had happened, from any batch."""

import contextlib

import numpy as np
import pytest
import torch
import toy_resume
from toy_logs import events_of, json_lines_of, table_of
from toy_resume import (
    EPOCHS,
    Broken,
    fit,
    is_of_time,
    log_of,
    optimizers_fn,
    resumed,
    same_weights,
    without_times,
)

from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.callbacks.tensorboard import CallbackTensorboardRecordHistory
from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.errors import CheckpointError
from trw_pipeline.sequences.sequence import SequenceArray
from trw_pipeline.training.callback import Callback

KINDS = {
    "sequences": toy_resume.of_sequences(),
    "two workers": toy_resume.of_sequences(2, backend="thread"),
    "loaders": toy_resume.of_loaders,
    "unknown length": toy_resume.of_unknown_length,
    "two datasets": toy_resume.of_two_datasets,
}


NB_EVALUATED = 16  # batches in a row without a step, at most


def check_same(whole, whole_folder, again, again_folder):
    assert same_weights(whole[0], again[0])
    assert without_times(whole[1]["history"]) == without_times(again[1]["history"])
    assert log_of(whole_folder) == log_of(again_folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_from_every_batch(kind, tmp_path):
    """RES-1, RES-4: Checkpoints after every step; the training breaks off before each of its batches in turn."""
    whole = fit(tmp_path / "whole", KINDS[kind], seed=3)
    nb_batches = whole[2]
    assert nb_batches >= (EPOCHS + 1) * 7
    nb_resumed = 0
    for break_at in range(1, nb_batches):
        folder = tmp_path / str(break_at)
        again = resumed(folder, KINDS[kind], break_at, seed=3)
        if again is not None:
            nb_resumed += 1
            # Again comes what was done since the last step: the last batch of a split, and what is evaluated after it.
            assert again[2] <= nb_batches - break_at + NB_EVALUATED
            check_same(whole, tmp_path / "whole", again, folder)
    assert nb_resumed >= nb_batches - 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"accumulate": 2},
        {"accumulate": 4},
        {"clip_norm": 0.1},
        {"ema": 0.9},
        {"accumulate": 4, "clip_norm": 0.1, "ema": 0.9},
        {"amp": "bf16"},
        {"amp": "fp16", "accumulate": 2},
        {"eval_every_X_epoch": 2},
        {"with_final_evaluation": False},
    ],
    ids=str,
)
def test_everything_that_a_training_keeps_goes_on(arguments, tmp_path):
    whole = fit(tmp_path / "whole", KINDS["sequences"], seed=3, **arguments)
    for break_at in (5, 9, 13, 17):
        folder = tmp_path / str(break_at)
        check_same(
            whole, tmp_path / "whole", resumed(folder, KINDS["sequences"], break_at, seed=3, **arguments), folder
        )


def test_without_a_seed_it_goes_on_too(tmp_path):
    """The seed of a chain is drawn by chance; it is in the checkpoint."""
    orders = []

    def noting():
        inputs = toy_resume.of_sequences()()
        orders.append(inputs["d"]["train"])
        return inputs

    with pytest.raises(Broken):
        fit(tmp_path, noting, break_at=9)
    fit(tmp_path, noting, resume=tmp_path / "default_r0")
    assert orders[0].seed == orders[1].seed


def test_checkpoints_at_the_ends_of_epochs_alone_lose_no_more_than_an_epoch(tmp_path):
    whole = fit(tmp_path / "whole", KINDS["sequences"], checkpoint=CallbackCheckpoint(), seed=3)
    for break_at in (8, 13, 14, 15):
        folder = tmp_path / str(break_at)
        again = resumed(folder, KINDS["sequences"], break_at, checkpoint=CallbackCheckpoint(), seed=3)
        check_same(whole, tmp_path / "whole", again, folder)


def test_a_training_may_be_broken_off_again_and_again(tmp_path):
    whole = fit(tmp_path / "whole", KINDS["sequences"], seed=3)
    folder = tmp_path / "again"
    with pytest.raises(Broken):
        fit(folder, KINDS["sequences"], break_at=2, seed=3)
    for break_at in (4, 4, 4, 4, 4):
        with pytest.raises(Broken):
            fit(folder, KINDS["sequences"], break_at=break_at, seed=3, resume=folder / "default_r0")
    again = fit(folder, KINDS["sequences"], seed=3, resume=folder / "default_r0")
    check_same(whole, tmp_path / "whole", again, folder)
    assert [path.name for path in folder.iterdir()] == ["default_r0"]


def test_a_finished_training_does_nothing_and_returns(tmp_path):
    """RES-7."""
    whole = fit(tmp_path, KINDS["sequences"], seed=3)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "trainer.txt"}
    again = fit(tmp_path, KINDS["sequences"], seed=3, resume=tmp_path / "default_r0")
    assert again[2] == 0
    assert same_weights(whole[0], again[0])
    assert without_times(whole[1]["history"]) == without_times(again[1]["history"])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "trainer.txt"} == before


@pytest.mark.parametrize("resume", ["default_r0", "default_r0/checkpoints/final.pt"])
def test_a_finished_training_may_be_given_more_epochs(resume, tmp_path):
    """RES-1."""
    whole = fit(tmp_path / "whole", KINDS["sequences"], num_epochs=5, seed=3)
    folder = tmp_path / "more"
    fit(folder, KINDS["sequences"], num_epochs=2, seed=3)
    again = fit(folder, KINDS["sequences"], num_epochs=5, seed=3, resume=folder / resume)
    check_same(whole, tmp_path / "whole", again, folder)


def test_a_finished_training_with_averaged_weights_is_loaded_and_does_not_go_on_from_them(tmp_path):
    whole = fit(tmp_path, KINDS["sequences"], num_epochs=1, ema=0.5)
    again = fit(tmp_path, KINDS["sequences"], num_epochs=1, ema=0.5, resume=tmp_path / "default_r0")
    assert again[2] == 0
    assert same_weights(whole[0], again[0])
    final = tmp_path / "default_r0" / "checkpoints" / "final.pt"
    with pytest.raises(CheckpointError, match=r"resume from .* last\.pt"):
        fit(tmp_path, KINDS["sequences"], num_epochs=2, ema=0.5, resume=final)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ema": 0.9}, "ema"),
        ({"amp": "fp16"}, "amp='fp16'"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(changes, named, tmp_path):
    with pytest.raises(Broken):
        fit(tmp_path, KINDS["sequences"], break_at=9, seed=3)
    with pytest.raises(CheckpointError, match=named):
        fit(tmp_path, KINDS["sequences"], seed=3, resume=tmp_path / "default_r0", **changes)


@pytest.mark.parametrize(("before", "now"), [(3, 4), (3, None), (None, 3)])
@pytest.mark.parametrize("break_at", [9, None], ids=["broken off", "finished"])
def test_another_seed_than_that_of_the_checkpoint_is_refused_before_anything_is_touched(
    tmp_path, before, now, break_at
):
    """The rest would be of another order, and the log would not say so."""
    with contextlib.suppress(Broken):
        fit(tmp_path, KINDS["sequences"], break_at, seed=before)
    folder = tmp_path / "default_r0"
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=f"seed must be that of the training that goes on, {before}, got {now}"):
        fit(tmp_path, KINDS["sequences"], seed=now, num_epochs=5, resume=folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def test_a_split_of_other_features_is_refused_within_an_epoch(tmp_path):
    def wider():
        split = toy_resume.numbers(14)
        split["x"] = split["x"].astype("float64")
        train = SequenceArray(split).map(toy_resume.augment).batch(3).collate()
        return {"d": {**KINDS["sequences"]()["d"], "train": train}}

    with pytest.raises(Broken):
        fit(tmp_path, KINDS["sequences"], break_at=2, seed=3)
    with pytest.raises(CheckpointError, match=r"'x': float32 \(3,\), here they have .*'x': float64 \(3,\)"):
        fit(tmp_path, wider, seed=3, resume=tmp_path / "default_r0")


def plain_adam(datasets, model):
    return {"d": torch.optim.Adam(model.parameters())}, None


def plain_sgd(datasets, model):
    return {"d": torch.optim.SGD(model.parameters(), lr=0.1)}, optimizers_fn(datasets, model)[1]


@pytest.mark.parametrize(
    ("other", "named"),
    [(plain_adam, "schedulers: {'d': 2}, this training: {}"), (plain_sgd, "'momentum'.* for SGD")],
)
def test_a_checkpoint_of_another_optimization_is_refused(other, named, tmp_path, monkeypatch):
    with pytest.raises(Broken):
        fit(tmp_path, KINDS["sequences"], break_at=9)
    monkeypatch.setattr(toy_resume, "optimizers_fn", other)
    with pytest.raises(CheckpointError, match=named):
        fit(tmp_path, KINDS["sequences"], resume=tmp_path / "default_r0")


def test_a_split_that_has_become_shorter_is_named(tmp_path):
    def shorter():
        inputs = toy_resume.of_loaders()
        return {"d": {"train": list(inputs["d"]["train"])[:1], "valid": inputs["d"]["valid"]}}

    with pytest.raises(Broken):
        fit(tmp_path, KINDS["loaders"], break_at=2)
    with pytest.raises(CheckpointError, match=r"after 2 batches of d/train, which has 1 now"):
        fit(tmp_path, shorter, resume=tmp_path / "default_r0")


def test_what_is_not_there_can_not_be_resumed(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        fit(tmp_path / "runs", KINDS["sequences"], resume=tmp_path)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        fit(tmp_path / "runs", KINDS["sequences"], resume=tmp_path / "last.pt")
    assert not (tmp_path / "runs").exists()


def test_what_came_after_the_checkpoint_is_cut_out_of_a_log_that_had_grown_wider(tmp_path):
    """A metric that is new in the epoch after the checkpoint has a column of its own by then."""
    log = tmp_path / "default_r0" / "trainlog.csv"
    with pytest.raises(Broken):
        fit(tmp_path, KINDS["sequences"], break_at=9, checkpoint=CallbackCheckpoint(), seed=3)
    text = log.read_text()
    header, *rows = text.splitlines()
    log.write_text("\n".join([f"{header},new", *(f"{row}," for row in rows), f"{rows[-1]},7"]) + "\n")
    whole = fit(tmp_path / "whole", KINDS["sequences"], seed=3)
    again = fit(tmp_path, KINDS["sequences"], checkpoint=CallbackCheckpoint(), seed=3, resume=tmp_path / "default_r0")
    check_same(whole, tmp_path / "whole", again, tmp_path)


def test_every_log_has_each_epoch_once_where_a_crash_came_between_row_and_checkpoint(tmp_path):
    """LOG-3: also where the rows that are done again had made a table wider."""

    class Crashes(Callback):
        def __init__(self, at):
            self.at = at

        def on_epoch_end(self, run):
            if run.epoch == self.at:
                raise Broken

    class Measures(Callback):
        def on_split_end(self, run):
            if run.epoch:
                run.history[-1]["d"]["train"]["y"]["late"] = float(run.epoch)

    def train(at, **resume):
        logs = [CallbackTrainLog("log.jsonl"), CallbackTensorboardRecordHistory()]
        extra = [Measures(), *logs, CallbackTrainLog("late.csv"), Crashes(at)]
        fit(tmp_path, KINDS["sequences"], checkpoint=CallbackCheckpoint(), extra=extra, seed=3, **resume)

    folder = tmp_path / "default_r0"
    events = folder / "tensorboard" / "events.out.tfevents.history"
    with pytest.raises(Broken):
        train(1)
    assert [row["epoch"] for row in json_lines_of(folder / "log.jsonl")] == [0, 1]
    train(None, resume=folder)
    assert [row["epoch"] for row in json_lines_of(folder / "log.jsonl")] == [0, 1, 2]
    assert [step for step, tag, _ in events_of(events) if tag == "time_s"] == [0, 1, 2]
    table = table_of(folder / "late.csv")
    assert [(row["epoch"], row["d/train/y/late"]) for row in table] == [("0", ""), ("1", "1.0"), ("2", "2.0")]
    assert [path.name for path in folder.rglob("*~")] == []
    for row, line in zip(table, json_lines_of(folder / "log.jsonl"), strict=True):
        assert {name: float(value) for name, value in row.items() if value and not is_of_time(name)} == {
            name: value for name, value in line.items() if not is_of_time(name)
        }


def test_a_damaged_checkpoint_is_passed_over(tmp_path, caplog):
    """LOG-1."""
    whole = fit(tmp_path / "whole", KINDS["sequences"], seed=3)
    with pytest.raises(Broken):
        fit(tmp_path, KINDS["sequences"], break_at=16, seed=3)
    last = tmp_path / "default_r0" / "checkpoints" / "last.pt"
    last.write_bytes(last.read_bytes()[:-100])
    again = fit(tmp_path, KINDS["sequences"], seed=3, resume=tmp_path / "default_r0")
    assert "last.pt' is damaged" in caplog.text
    check_same(whole, tmp_path / "whole", again, tmp_path)


def test_files_of_others_in_the_folder_survive(tmp_path):
    """LOG-7."""
    with pytest.raises(Broken):
        fit(tmp_path, KINDS["sequences"], break_at=16, seed=3)
    folder = tmp_path / "default_r0"
    others = [folder / "notes.txt", folder / "checkpoints" / "mine.pt", folder / "checkpoints" / ".mine.pt.tmp"]
    for path in others:
        path.write_text("mine")
    left_over = folder / "checkpoints" / ".last.pt.0123abcd.tmp"
    left_over.write_text("half")
    fit(tmp_path, KINDS["sequences"], seed=3, resume=folder)
    assert all(path.read_text() == "mine" for path in others)
    assert not left_over.exists()
    assert np.all([path.exists() for path in others])
