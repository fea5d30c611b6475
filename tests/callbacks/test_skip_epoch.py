import logging

import pytest
from toy_samples import batches, fit

from trw_pipeline.callbacks.early_stopping import CallbackEarlyStopping
from trw_pipeline.callbacks.skip_epoch import CallbackSkipEpoch
from trw_pipeline.errors import CheckpointError
from trw_pipeline.training.callback import HOOKS, Callback


class Notes(Callback):
    """Notes every hook and call, with what it got."""

    def __init__(self, log=None, name=""):
        self.log = [] if log is None else log
        self.name = name
        self.nb_calls = 0

    def __call__(self, *arguments, **keywords):
        self.nb_calls += 1
        self.log.append((self.name, "call", len(arguments[1]), sorted(keywords)))

    def state_dict(self):
        return {"nb_calls": self.nb_calls}

    def load_state_dict(self, state):
        self.nb_calls = state["nb_calls"]


def _note(name):
    return lambda self, run: self.log.append((self.name, name, run.epoch, run.is_final))


for _name in HOOKS:
    setattr(Notes, _name, _note(_name))


class Outer(Notes):
    outer = True


def logs(folder, nb_epochs, **keywords):
    """What the same callback notes with and without being wrapped."""
    found = []
    for wrap in (lambda one: one, lambda one: CallbackSkipEpoch(nb_epochs, [one])):
        notes = Notes()
        fit(folder, [wrap(notes)], {"d": {"train": batches(), "valid": batches()}}, **keywords)
        found.append(notes.log)
    return found


def test_of_every_epoch_everything_is_passed_on_as_it_is(tmp_path):
    plain, wrapped = logs(tmp_path, 1, num_epochs=2)
    assert wrapped == plain
    assert {entry[1] for entry in wrapped} == {*HOOKS, "call"} - {"on_exception"}
    keywords = next(entry[3] for entry in wrapped if entry[1] == "call")
    assert {"optimizers", "optimizers_fn", "last_epoch"} <= set(keywords)


def test_of_every_third_epoch_all_hooks_and_of_the_others_none(tmp_path):
    plain, wrapped = logs(tmp_path, 3, num_epochs=7)
    always = ("on_fit_start", "on_fit_end")

    def is_due(entry):
        _, what, number, is_final = entry
        if what == "call":
            return number in (3, 6)
        return what in always or is_final or number in (2, 5)

    assert wrapped == [entry for entry in plain if is_due(entry)]
    assert [entry[2] for entry in wrapped if entry[1] == "call"] == [3, 6]


@pytest.mark.parametrize("where", ["callbacks_pre_training_fn", "callbacks_post_training_fn"])
def test_before_and_after_a_training_the_call_is_always_passed_on(where, tmp_path):
    plain, wrapped = logs(tmp_path, 5, num_epochs=1, where=where)
    assert wrapped == plain
    assert [entry[1] for entry in wrapped].count("call") == 1


def test_those_that_stand_around_the_others_do_so_here_too(tmp_path):
    log = []
    callbacks = [Notes(log, "inner"), Outer(log, "outer")]
    fit(tmp_path, [CallbackSkipEpoch(1, callbacks)], {"d": {"train": batches()}})
    order = [name for name, hook, *_ in log if hook == "on_epoch_start"]
    assert order == ["outer", "inner"]
    assert [name for name, hook, *_ in log if hook == "on_epoch_end"] == ["inner", "outer"]


def test_what_is_only_callable_or_not_enabled(tmp_path):
    calls = []
    silent = Notes()
    silent.enabled = False
    skip = CallbackSkipEpoch(2, [silent, lambda *arguments, **keywords: calls.append(keywords["last_epoch"])])
    fit(tmp_path, [skip], {"d": {"train": batches()}}, num_epochs=4)
    assert calls == [False, True]
    assert silent.log == []


def test_states_make_the_round_trip_in_their_order():
    skip = CallbackSkipEpoch(2, [Notes(), lambda *arguments, **keywords: None, Notes()])
    skip.callbacks[0].nb_calls, skip.callbacks[2].nb_calls = 3, 5
    state = skip.state_dict()
    fresh = CallbackSkipEpoch(2, [Notes(), lambda *arguments, **keywords: None, Notes()])
    fresh.load_state_dict(state)
    assert [fresh.callbacks[0].nb_calls, fresh.callbacks[2].nb_calls] == [3, 5]
    with pytest.raises(CheckpointError, match="states of 2 callbacks in a CallbackSkipEpoch, here are 1"):
        CallbackSkipEpoch(2, [Notes()]).load_state_dict(state)


def test_of_an_error_all_hear_also_behind_one_that_fails(tmp_path, caplog):
    class Fails(Callback):
        def on_exception(self, run):
            raise OSError("disk full")

    class Ends(Callback):
        def on_epoch_end(self, run):
            raise RuntimeError("over")

    notes = Notes()
    with caplog.at_level(logging.ERROR, "trw_pipeline"), pytest.raises(RuntimeError, match="over"):
        fit(tmp_path, [CallbackSkipEpoch(9, [Fails(), notes]), Ends()], {"d": {"train": batches()}})
    assert notes.log[-1][1] == "on_exception"
    assert "disk full" in caplog.text


def test_a_training_that_stops_early_still_tells_its_end(tmp_path):
    notes = Notes()
    stop = CallbackEarlyStopping(("d", "train", "overall_loss", "loss"), patience=1)  # the rate is 0
    fit(tmp_path, [stop, CallbackSkipEpoch(50, [notes])], {"d": {"train": batches()}}, num_epochs=9)
    assert [entry[1] for entry in notes.log if not entry[3]] == ["on_fit_start"]
    assert notes.log[-1][1] == "on_fit_end"


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="nb_epochs must be at least 1, got 0"):
        CallbackSkipEpoch(0, [])
    with pytest.raises(TypeError, match="a callback must be a Callback or callable, got int"):
        CallbackSkipEpoch(1, [3])
