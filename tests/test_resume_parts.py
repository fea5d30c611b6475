"""What of a training has to go on with it, part by part: learning rates, patience, the end that it had come to."""

from __future__ import annotations

import signal

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from toy_resume import Breaks, Broken, log_of, same_weights, without_times
from toy_trainer import SCORE, Net, Scores, batches, fitting_in, trainer

from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.callbacks.early_stopping import CallbackEarlyStopping
from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.metrics import Metric
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.optimizers import Schedule
from trw_pipeline.training.split import judge

EPOCHS = 5
NB_STEPS = 3  # of an epoch
SCORES = [3.0, 2.0, 2.0, 2.0, 1.0]

SCHEDULES = {
    "multi step": (lambda optimizer: MultiStepLR(optimizer, [1, 3], 0.1), "epoch", None),
    "cosine": (lambda optimizer: CosineAnnealingLR(optimizer, EPOCHS), "epoch", None),
    "one cycle": (lambda optimizer: OneCycleLR(optimizer, 1.0, total_steps=EPOCHS * NB_STEPS), "step", None),
    "function": (lambda optimizer: LambdaLR(optimizer, lambda step: 0.9**step), "step", None),
    "one after the other": (
        lambda optimizer: SequentialLR(optimizer, [LinearLR(optimizer, 0.5), MultiStepLR(optimizer, [2])], [2]),
        "epoch",
        None,
    ),
    "plateau": (lambda optimizer: ReduceLROnPlateau(optimizer, factor=0.5, patience=0), "epoch", SCORE),
}


class Rates(Callback):
    """The learning rate of each step."""

    def __init__(self):
        self.of_steps = []

    def on_step_start(self, run):
        self.of_steps.append(run.optimizer.param_groups[0]["lr"])


def small():
    return {"d": {"train": batches(2 * NB_STEPS, 2), "valid": batches(4, 2)}}


def fitted(folder, create, every, metric, break_at=None, **arguments):
    rates = Rates()

    def optimizers_fn(datasets, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        return {"d": optimizer}, {"d": Schedule(create(optimizer), every, metric)}

    callbacks = (Breaks(break_at), Scores(SCORES), rates, CallbackCheckpoint(every_n_steps=1))
    try:
        fitting_in(folder)(
            trainer(*callbacks), inputs=small, optimizers_fn=optimizers_fn, num_epochs=EPOCHS, **arguments
        )
    except Broken:
        assert break_at is not None
    return rates.of_steps


def by_hand(create, every, metric):
    """The rates of a loop that knows nothing of ours."""
    optimizer = torch.optim.SGD(Net().parameters(), lr=0.25)
    scheduler = create(optimizer)
    rates = []
    for epoch in range(EPOCHS):
        for _ in range(NB_STEPS):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if every == "step":
                scheduler.step()
        if every == "epoch":
            scheduler.step(*([] if metric is None else [SCORES[epoch]]))
    return rates


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCHEDULES)
def test_learning_rates_are_those_of_a_loop_by_hand_whenever_the_training_is_resumed(tmp_path, kind):
    """RES-2: broken off in the training or the evaluation of each epoch."""
    expected = by_hand(*SCHEDULES[kind])
    assert len(set(expected)) > 2
    assert fitted(tmp_path / "whole", *SCHEDULES[kind]) == expected
    of_epoch = NB_STEPS + 2
    for epoch in range(EPOCHS):
        folder = tmp_path / str(epoch)
        before = fitted(folder, *SCHEDULES[kind], break_at=epoch * of_epoch + 2 + epoch % 3)
        after = fitted(folder, *SCHEDULES[kind], resume=folder / "default_r0")
        assert before + after == expected


class OfVersion2(Net):
    """Its state had other names before version 2."""

    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *others):
        assert local_metadata["version"] == 2
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)


def test_a_module_is_told_the_version_that_its_state_is_of(tmp_path):
    arguments = {"inputs": small, "model_fn": lambda options: OfVersion2()}
    fitting_in(tmp_path)(trainer(CallbackCheckpoint()), num_epochs=1, **arguments)
    fitting_in(tmp_path)(trainer(CallbackCheckpoint()), num_epochs=2, resume=tmp_path / "default_r0", **arguments)


def contents(folder):
    """All files of a run, but for the log of what the program did, as bytes and times."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and path.name != "trainer.txt"
    }


def test_a_training_that_was_stopped_early_is_finished(tmp_path):
    """RES-7: no step, no row, no file is touched; the history is the same."""

    def run(**arguments):
        rates = Rates()
        callbacks = (
            Scores([1.0] * 9),
            rates,
            CallbackEarlyStopping(SCORE, 2),
            CallbackTrainLog(),
            CallbackCheckpoint(),
        )
        fitted = fitting_in(tmp_path)(trainer(*callbacks), inputs=small, num_epochs=9, **arguments)
        return *fitted, len(rates.of_steps)

    model, result, nb_steps = run()
    assert nb_steps == 3 * NB_STEPS
    before = contents(tmp_path)
    again, its_result, nb_more = run(resume=tmp_path / "default_r0")
    assert nb_more == 0
    assert contents(tmp_path) == before
    assert same_weights(model, again)
    assert its_result["history"] == result["history"]


@pytest.mark.parametrize("arguments", [{"ema": 0.9}, {"amp": "fp16"}, {"with_final_evaluation": False}], ids=str)
def test_a_finished_training_is_finished_whatever_its_arguments(tmp_path, arguments):
    """RES-7, of weights that became their average, too."""
    fit = fitting_in(tmp_path)
    model, result = fit(trainer(CallbackCheckpoint()), inputs=small, **arguments)
    before = contents(tmp_path)
    again, its_result = fit(trainer(CallbackCheckpoint()), inputs=small, resume=tmp_path / "default_r0", **arguments)
    assert contents(tmp_path) == before
    assert same_weights(model, again)
    assert its_result["history"] == result["history"]


@pytest.mark.parametrize("cut", range(1, 5))
def test_patience_goes_on(tmp_path, cut):
    """RES-3: the training ends after the same epoch, wherever it was resumed; the best stays the best."""
    scores = [5.0, 3.0, 4.0, 3.0, 3.5, 1.0, 0.0]

    def run(num_epochs, **arguments):
        callbacks = (
            Scores(scores),
            CallbackEarlyStopping(SCORE, 3),
            CallbackTrainLog(),
            CallbackCheckpoint(metric=SCORE),
        )
        fitted = fitting_in(tmp_path)
        return fitted(
            trainer(*callbacks), inputs=small, num_epochs=num_epochs, with_final_evaluation=False, **arguments
        )[1]["history"]

    run(cut)
    assert len(run(7, resume=tmp_path / "default_r0")) == 5
    folder = tmp_path / "default_r0"
    assert [path.name for path in folder.glob("checkpoints/best*")] == ["best-1.pt"]
    rows = (folder / "trainlog.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", "0", "1", "2", "3", "4"]


def test_the_final_evaluation_of_an_average_goes_on(tmp_path):
    """The program is told to end in it, when the weights have become their average."""

    class Tells(Callback):
        def on_batch_start(self, run):
            if run.epoch == run.epochs and run.split == "valid":
                signal.raise_signal(signal.SIGTERM)

    arguments = {"inputs": small, "ema": 0.9, "seed": 3}
    whole = fitting_in(tmp_path / "whole")(trainer(CallbackCheckpoint()), **arguments)
    with pytest.raises(SystemExit, match="143"):
        fitting_in(tmp_path)(trainer(Tells(), CallbackCheckpoint()), **arguments)
    again = fitting_in(tmp_path)(trainer(CallbackCheckpoint()), resume=tmp_path / "default_r0", **arguments)
    assert same_weights(whole[0], again[0])
    assert without_times(whole[1]["history"]) == without_times(again[1]["history"])


class OfManyTypes(Metric):
    """Figures as numbers of Python, NumPy and torch."""

    def measure(self, raw, output, truth):
        return {"n": len(truth)}

    def figures(self, totals):
        n = totals["n"]
        return {"a": float(n), "b": np.float64(n), "c": np.float32(n), "d": torch.tensor(n), "e": np.array(n), "f": n}


class Remembers(Callback):
    """A state of all kinds of plain data."""

    def __init__(self):
        self.state = {}

    def on_epoch_end(self, run):
        self.state = {
            "numbers": [np.float64(0.5), np.int64(3), True, None],
            "array": np.arange(3, dtype=np.float16),
            "times": np.array(["2026-12-01"], "datetime64[D]"),
            ("a", 1): torch.tensor(2.0),
            "path": run.log_dir,
        }

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_a_checkpoint_of_any_numbers_is_read_without_trust_and_resumed(tmp_path):
    """RES-5."""

    class Heads(Net):
        def forward(self, batch):
            return {"y": OutputClassification(self.inner(batch["x"]), "truth", metrics=[OfManyTypes()])}

    arguments = {"inputs": small, "model_fn": lambda options: Heads()}
    fitting_in(tmp_path)(trainer(Remembers(), CallbackCheckpoint()), num_epochs=1, **arguments)
    folder = tmp_path / "default_r0"
    figures = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)["history"][0]["d"]["valid"]["y"]
    assert {name: value for name, value in figures.items() if name != "loss"} == dict.fromkeys("abcdef", 4.0)
    assert {type(value) for value in figures.values()} == {float}

    remembers = Remembers()
    seen = []

    class Looks(Callback):
        def on_epoch_start(self, run):
            seen.append(remembers.state)

    fitting_in(tmp_path)(trainer(remembers, Looks(), CallbackCheckpoint()), num_epochs=2, resume=folder, **arguments)
    (state,) = seen
    assert state["numbers"] == [0.5, 3, True, None]
    assert (state["array"].tolist(), state["array"].dtype) == ([0.0, 1.0, 2.0], np.float16)
    assert state["times"].astype(str).tolist() == ["2026-12-01"]
    assert state["a", 1] == torch.tensor(2.0)
    assert state["path"] == str(folder)


class Signals(Callback):
    """Asks the program to end, at the first moment of this kind; where it can be left whole then, that is at once."""

    def __init__(self, hook):
        setattr(self, hook, self.signal)

    def on_epoch_start(self, run):
        pass

    def on_split_start(self, run):
        pass

    def signal(self, run):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("break_at", [2, 4, 6])
def test_a_training_that_ends_as_soon_as_it_was_resumed_loses_nothing(tmp_path, break_at):
    """What was measured before goes from one checkpoint into the next, though no batch came between them."""
    arguments = {"inputs": small, "seed": 3}

    def callbacks(*more):
        return trainer(*more, CallbackTrainLog(), CallbackCheckpoint(every_n_steps=1))

    whole = fitting_in(tmp_path / "whole")(callbacks(), **arguments)
    fit = fitting_in(tmp_path)
    with pytest.raises(Broken):
        fit(callbacks(Breaks(break_at)), **arguments)
    for hook in ("on_split_start", "on_epoch_start", "on_split_start"):
        with pytest.raises(SystemExit):
            fit(callbacks(Signals(hook)), resume=tmp_path / "default_r0", **arguments)
    again = fit(callbacks(), resume=tmp_path / "default_r0", **arguments)
    assert same_weights(whole[0], again[0])
    assert without_times(whole[1]["history"]) == without_times(again[1]["history"])


class Gan(Net):
    """Its generator and its discriminator have optimizers, and schedules, of their own; noise is drawn by chance."""

    def __init__(self):
        super().__init__()
        self.generator = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout(0.3))


def gan_step(run):
    fake = run.model.generator(torch.randn(len(run.batch["x"]), 2))
    judge(run)
    run.backward(run.loss + run.model.inner(fake.detach()).mean())
    run.step("discriminator")
    run.backward(-run.model.inner(fake).mean())
    run.step("generator")


def optimizers_of_a_gan(datasets, model):
    optimizers = {
        "generator": torch.optim.Adam(model.generator.parameters(), 0.05),
        "discriminator": torch.optim.SGD(model.inner.parameters(), 0.1, momentum=0.9),
    }
    schedules = [Schedule(ExponentialLR(optimizer, 0.9), every="step") for optimizer in optimizers.values()]
    return {"d": optimizers}, {"d": schedules}


@pytest.mark.slow
def test_a_gan_of_two_optimizers_goes_on(tmp_path):
    """RES-2, RES-4: broken off in turn before each batch of the second epoch."""

    def fit(folder, *callbacks, **arguments):
        return fitting_in(folder)(
            trainer(*callbacks, CallbackTrainLog(), CallbackCheckpoint(every_n_steps=1)),
            inputs=small,
            model_fn=lambda options: Gan(),
            optimizers_fn=optimizers_of_a_gan,
            step=gan_step,
            seed=3,
            **arguments,
        )

    whole = fit(tmp_path / "whole")
    for break_at in range(NB_STEPS + 2, 2 * (NB_STEPS + 2)):
        folder = tmp_path / str(break_at)
        with pytest.raises(Broken):
            fit(folder, Breaks(break_at))
        again = fit(folder, resume=folder / "default_r0")
        assert same_weights(whole[0], again[0])
        assert without_times(whole[1]["history"]) == without_times(again[1]["history"])
        assert log_of(tmp_path / "whole") == log_of(folder)
