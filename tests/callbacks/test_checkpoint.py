"""Which checkpoints are there when, and that each can be read without trust."""

import math
import os

import pytest
import torch
from toy_resume import Breaks, Broken
from toy_trainer import SCORE as PATH
from toy_trainer import Scores, batches, fitting_in, trainer

from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.checkpoint import save_checkpoint


def files_after(tmp_path, checkpoint, values=(0,) * 4, **arguments):
    fitting_in(tmp_path)(trainer(checkpoint, Scores(values)), num_epochs=len(values), **arguments)
    return sorted(path.name for path in (tmp_path / "default_r0" / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ["epoch-3.pt", "final.pt", "last.pt"]),
        ({"keep_n": 2}, ["epoch-2.pt", "epoch-3.pt", "final.pt", "last.pt"]),
        ({"keep_n": 9}, ["epoch-0.pt", "epoch-1.pt", "epoch-2.pt", "epoch-3.pt", "final.pt", "last.pt"]),
        ({"every_n_epochs": 2, "keep_n": 9}, ["epoch-1.pt", "epoch-3.pt", "final.pt", "last.pt"]),
        ({"every_n_epochs": 3, "keep_n": 9}, ["epoch-2.pt", "epoch-3.pt", "final.pt", "last.pt"]),
        ({"save_last": False}, ["epoch-3.pt", "final.pt"]),
    ],
    ids=str,
)
def test_the_files_of_four_epochs(tmp_path, arguments, expected):
    assert files_after(tmp_path, CallbackCheckpoint(**arguments)) == expected


@pytest.mark.parametrize(
    ("values", "arguments", "best"),
    [
        ([3, 1, 2, 5], {}, [1]),
        ([3, 1, 2, 5], {"mode": "max"}, [3]),
        ([3, 1, 1, 1], {}, [1]),  # a tie keeps the earlier
        ([math.nan, 2, math.nan, 3], {}, [1]),
        ([math.nan] * 3, {}, []),
        ([5, 4, 3, 2], {"keep_n": 2}, [2, 3]),
        ([5, None, 3, None], {}, [2]),
        ([1, 2, math.inf, 4], {"mode": "max"}, [2]),
    ],
    ids=str,
)
def test_the_best_epoch_is_that_of_the_metric(tmp_path, values, arguments, best):
    files = files_after(tmp_path, CallbackCheckpoint(metric=PATH, **arguments), values)
    assert [name for name in files if name.startswith("best")] == [f"best-{epoch}.pt" for epoch in best]


def test_a_metric_that_is_not_there_is_named(tmp_path):
    """LOOP-5: else there would never be a best."""
    with pytest.raises(ValueError, match=r"no metric \('d', 'valid', 'y', 'dice'\).*'classification error'"):
        files_after(tmp_path, CallbackCheckpoint(metric=("d", "valid", "y", "dice")))


def test_the_best_one_survives_a_resume(tmp_path):
    """T18, RES-3: the lowest value is in epoch 1, the training ends after epoch 2 and is given two more."""
    files_after(tmp_path, CallbackCheckpoint(metric=PATH), [3, 1, 2])
    fitting_in(tmp_path)(
        trainer(CallbackCheckpoint(metric=PATH), Scores([3, 1, 2, 1, 4])), num_epochs=5, resume=tmp_path / "default_r0"
    )
    folder = tmp_path / "default_r0" / "checkpoints"
    assert [path.name for path in folder.glob("best*")] == ["best-1.pt"]


def test_the_weights_in_a_file_are_those_of_its_epoch(tmp_path):
    weights = []

    class Note(Callback):
        def on_epoch_end(self, run):
            weights.append(run.model.inner.weight.detach().clone())

    fitting_in(tmp_path)(trainer(CallbackCheckpoint(keep_n=9), Note()), num_epochs=3)
    for epoch, weight in enumerate(weights):
        # Without trust: nothing but tensors and plain data is in it.
        loaded = torch.load(tmp_path / "default_r0" / "checkpoints" / f"epoch-{epoch}.pt", weights_only=True)
        assert torch.equal(loaded["model"]["inner.weight"], weight)
        assert (loaded["epoch"], loaded["batch_index"]) == (epoch + 1, None)
        assert len(loaded["history"]) == epoch + 1
        parts = {"optimizers", "schedulers", "scaler", "ema", "random", "sequences", "callbacks", "logs", "format"}
        assert parts <= set(loaded)


def test_a_file_system_without_links_has_the_same_files(tmp_path, monkeypatch):
    def refused(*paths):
        raise OSError(95, "Operation not supported")

    arguments = {"metric": PATH, "keep_n": 2}
    with_links = files_after(tmp_path / "links", CallbackCheckpoint(**arguments), [3, 1, 2], seed=3)
    monkeypatch.setattr(os, "link", refused)
    assert files_after(tmp_path / "copies", CallbackCheckpoint(**arguments), [3, 1, 2], seed=3) == with_links
    for name in with_links:
        models = [
            torch.load(tmp_path / kind / "default_r0" / "checkpoints" / name, weights_only=True)["model"]
            for kind in ("links", "copies")
        ]
        assert torch.equal(models[0]["inner.weight"], models[1]["inner.weight"])


def test_it_comes_after_all_others_wherever_it_stands(tmp_path):
    class Counts(Callback):
        nb = 0

        def on_epoch_end(self, run):
            self.nb += 1

        def state_dict(self):
            return {"nb": self.nb}

    fitting_in(tmp_path)(trainer(CallbackCheckpoint(), Counts()), num_epochs=2)
    loaded = torch.load(tmp_path / "default_r0" / "checkpoints" / "last.pt", weights_only=True)
    assert ("Counts", {"nb": 2}) in [(name.rpartition(".")[2], state) for name, state in loaded["callbacks"]]


def test_a_split_that_can_not_tell_its_position_is_told_of_once(tmp_path, caplog):
    class Split(list):
        def state_dict(self):
            raise TypeError("this one has none")

        def load_state_dict(self, state):
            raise AssertionError

    def inputs():
        from toy_trainer import batches

        return {"d": {"train": batches(8), "valid": batches(4)}} | {"e": {"valid": Split(batches(4))}}

    def optimizers_fn(datasets, model):
        return {"d": torch.optim.SGD(model.parameters(), 0.1)}, None

    with pytest.raises(TypeError, match="this one has none"):
        fitting_in(tmp_path)(
            trainer(CallbackCheckpoint(every_n_steps=1)), inputs=inputs, optimizers_fn=optimizers_fn, num_epochs=1
        )
    assert caplog.text.count("no checkpoint within the epoch: this one has none") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"every_n_epochs": 0}, "every_n_epochs must be at least 1, got 0"),
        ({"keep_n": 0}, "keep_n must be at least 1"),
        ({"every_n_steps": -1}, "every_n_steps must be at least 1"),
        ({"mode": "best"}, "mode must be"),
        ({"metric": ("valid", "loss")}, "metric must be"),
    ],
)
def test_wrong_arguments_are_refused(arguments, named):
    with pytest.raises(ValueError, match=named):
        CallbackCheckpoint(**arguments)


@pytest.mark.parametrize("resumed_times", [1, 2])
def test_after_a_resume_no_checkpoint_is_written_before_its_steps_are_made(tmp_path, monkeypatch, resumed_times):
    made = []

    def noting(checkpoint, path):
        made.append((path.name, checkpoint["counters"]["nb_steps"]))
        save_checkpoint(checkpoint, path)

    monkeypatch.setattr("trw_pipeline.callbacks.checkpoint.save_checkpoint", noting)
    data = {"train": batches(20), "valid": batches(2)}  # ten steps, and two evaluations of one batch
    resume = {}
    for break_at in [5] + [2] * (resumed_times - 1):
        with pytest.raises(Broken):
            fitting_in(tmp_path)(
                trainer(Breaks(break_at), CallbackCheckpoint(every_n_steps=4)), inputs=lambda: {"d": data}, **resume
            )
        resume = {"resume": tmp_path / "default_r0"}
    assert made == [("last.pt", 4)]
    made.clear()
    fitting_in(tmp_path)(trainer(CallbackCheckpoint(every_n_steps=4)), inputs=lambda: {"d": data}, **resume)
    assert made == [
        ("last.pt", 8),
        ("epoch-0.pt", 10),
        ("last.pt", 14),
        ("last.pt", 18),
        ("epoch-1.pt", 20),
        ("final.pt", 20),
    ]
