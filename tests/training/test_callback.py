import logging

import pytest
import torch
from torch import nn

from trw_pipeline.training.callback import HOOKS, Callback, create_hook_table, with_batch_callbacks
from trw_pipeline.training.run import Run


class Recorder(Callback):
    """Notes the hooks named in `wanted`; the others are not overridden."""

    def __init__(self, name, calls):
        self.name = name
        self.calls = calls

    def __init_subclass__(cls, wanted=()):
        for hook in wanted:
            setattr(cls, hook, lambda self, run, hook=hook: self.calls.append((self.name, hook)))


class Everything(Recorder, wanted=HOOKS):
    pass


class Outer(Everything):
    outer = True


class OnlyEpochEnd(Recorder, wanted=["on_epoch_end"]):
    pass


def new_run(**kwargs):
    return Run(nn.Linear(1, 1), torch.device("cpu"), **kwargs)


def test_every_hook_of_a_callback_does_nothing_by_default():
    callback = Callback()
    for hook in HOOKS:
        assert getattr(callback, hook)(new_run()) is None
    assert callback({}, [], nn.Linear(1, 1), {}, None, {}, {}, [], last_epoch=True) is None
    assert callback.state_dict() == {}
    assert callback.load_state_dict({}) is None


def test_there_are_thirteen_hooks_and_one_for_exceptions_and_all_are_methods():
    assert len(HOOKS) == 14
    assert [name for name in vars(Callback) if name.startswith("on_")] == list(HOOKS)


def test_only_overridden_methods_are_in_the_table():
    table = create_hook_table(per_epoch=[OnlyEpochEnd("a", [])])
    assert {name: len(hooks) for name, hooks in table.items() if hooks} == {"on_epoch_end": 1}
    assert list(table) == list(HOOKS)


@pytest.mark.parametrize("hook", HOOKS)
def test_callbacks_run_in_the_order_of_their_list_and_outer_ones_stand_around_them(hook):
    calls = []
    per_epoch = [Everything("a", calls), Outer("outer", calls), Everything("b", calls)]
    new_run(hooks=create_hook_table(per_epoch=per_epoch)).fire(hook)
    expected = ["outer", "a", "b"] if hook.endswith("_start") else ["a", "b", "outer"]
    assert calls == [(name, hook) for name in expected]


def test_a_callback_that_is_not_enabled_is_called_nowhere():
    idle, calls = Everything("a", []), []
    idle.enabled = False
    table = create_hook_table([idle], [idle, OnlyEpochEnd("b", calls)], [idle])
    assert {name: len(hooks) for name, hooks in table.items() if hooks} == {"on_epoch_end": 1}


def test_pre_and_post_training_lists_fire_only_their_one_moment():
    calls = []
    table = create_hook_table(
        pre_training=[Everything("pre", calls)], post_training=[Everything("post", calls)], per_epoch=[]
    )
    run = new_run(hooks=table)
    for hook in HOOKS:
        run.fire(hook)
    assert calls == [("pre", "on_fit_start"), ("post", "on_fit_end")]


def test_the_lists_run_one_after_the_other():
    calls = []
    lists = [[Everything(name, calls)] for name in ("pre", "epoch", "post")]
    run = new_run(hooks=create_hook_table(*lists))
    run.fire("on_fit_start")
    run.fire("on_fit_end")
    assert [name for name, _ in calls] == ["pre", "epoch", "epoch", "post"]


def test_anything_with_the_signature_of_the_reference_runs_at_the_moment_of_its_list():
    calls = []

    def callback(options, history, model, losses, outputs, datasets, datasets_infos, callbacks_per_batch, **kwargs):
        calls.append((len(history), outputs, sorted(kwargs), kwargs.get("last_epoch")))

    run = new_run(hooks=create_hook_table([callback], [callback], [callback]), epochs=1)
    run.fire("on_fit_start")
    run.history.append({})
    run.outputs = {"d": {}}
    run.fire("on_epoch_end")
    run.fire("on_fit_end")
    assert calls == [
        (0, None, ["optimizers", "optimizers_fn"], None),
        (1, {"d": {}}, ["last_epoch", "optimizers", "optimizers_fn"], True),
        (1, {"d": {}}, ["optimizers_fn"], None),
    ]


def test_the_reference_call_gets_the_objects_of_the_run():
    seen = {}

    def callback(options, history, model, losses, outputs, datasets, datasets_infos, callbacks_per_batch, **kwargs):
        seen.update(locals())

    batch_callbacks = [print]
    run = new_run(
        options={"a": 1},
        losses={"d": print},
        datasets={"d": {}},
        datasets_infos={"d": 2},
        callbacks_per_batch=batch_callbacks,
        hooks=create_hook_table([callback]),
    )
    run.fire("on_fit_start")
    for name in ("options", "history", "model", "losses", "outputs", "datasets", "datasets_infos"):
        assert seen[name] is getattr(run, name)
    assert seen["callbacks_per_batch"] is batch_callbacks


def test_a_callback_may_use_hooks_and_call():
    calls = []

    class Both(OnlyEpochEnd):
        def __call__(self, *args, **kwargs):
            self.calls.append((self.name, "__call__"))

    new_run(hooks=create_hook_table(per_epoch=[Both("a", calls)])).fire("on_epoch_end")
    assert calls == [("a", "on_epoch_end"), ("a", "__call__")]


def test_what_is_no_callback_is_refused():
    with pytest.raises(TypeError, match="int"):
        create_hook_table(per_epoch=[3])


def test_a_callback_with_nothing_to_do_in_its_list_is_refused():
    with pytest.raises(ValueError, match="OnlyEpochEnd does nothing at on_fit_start"):
        create_hook_table(pre_training=[OnlyEpochEnd("a", [])])


def test_callbacks_of_batches_run_after_all_others_with_the_documented_arguments():
    calls = []
    table = with_batch_callbacks(
        create_hook_table(per_epoch=[Outer("outer", calls)]),
        [lambda *args: calls.append(args)],
        [lambda *args: calls.append(args)],
    )
    run = new_run(hooks=table, dataset="d", split="s", batch={"x": 1}, terms={"y": {}})
    run.fire("on_forward_start")
    run.fire("on_batch_end")
    assert calls == [
        ("outer", "on_forward_start"),
        ("d", "s", {"x": 1}),
        ("outer", "on_batch_end"),
        ("d", "s", {"x": 1}, {"y": {}}),
    ]


def stop(*args):
    raise StopIteration


@pytest.mark.parametrize("lists", [([stop], None), (None, [stop])])
def test_stop_iteration_of_a_callback_of_batches_ends_the_split_and_not_those_after_it(lists):
    calls = []
    after = tuple([*callbacks, lambda *args: calls.append(args)] if callbacks else None for callbacks in lists)
    run = new_run(hooks=with_batch_callbacks(create_hook_table(), *after))
    run.fire("on_forward_start")
    run.fire("on_batch_end")
    assert run.split_stopped
    assert len(calls) == 1


def test_stop_iteration_of_a_hook_is_an_error():
    class Stopping(Callback):
        def on_loss(self, run):
            raise StopIteration("end")

    run = new_run(hooks=create_hook_table(per_epoch=[Stopping()]))
    with pytest.raises(RuntimeError, match="Stopping at on_loss") as caught:
        run.fire("on_loss")
    assert isinstance(caught.value.__cause__, StopIteration)


class Failing(Callback):
    def on_epoch_end(self, run):
        raise OSError("disk full")

    def on_exception(self, run):
        raise ValueError("also in the hook")


def test_an_error_names_its_callback():
    run = new_run(hooks=create_hook_table(per_epoch=[Failing()]), epoch=3)
    with pytest.raises(OSError, match="disk full") as caught:
        run.fire("on_epoch_end")
    assert caught.value.__notes__ == ["raised by the callback Failing at on_epoch_end, epoch 3"]


def test_every_exception_hook_runs_even_if_one_fails(caplog):
    calls = []
    table = create_hook_table(
        per_epoch=[Everything("a", calls), Failing(), Outer("outer", calls), Everything("b", calls)]
    )
    run = new_run(hooks=table)
    error = RuntimeError("first")
    with caplog.at_level(logging.ERROR, logger="trw_pipeline"):
        run.fire_exception(error)
    assert [name for name, _ in calls] == ["a", "b", "outer"]
    assert run.error is error
    assert "also in the hook" in caplog.text
