import csv
import functools
import inspect

import pytest
import torch
from toy_trainer import Net, batches, datasets, fitting_in, sgd, trainer

from trw_pipeline.callbacks.export_history import CallbackExportHistory
from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.callback import HOOKS, Callback
from trw_pipeline.training.loop import default_sum_all_losses, epoch_train_eval
from trw_pipeline.training.optimizers import create_sgd_optimizers_scheduler_step_lr_fn
from trw_pipeline.training.options import create_default_options


@pytest.fixture
def fit(tmp_path):
    return fitting_in(tmp_path)


# The documented face


def test_the_arguments_of_fit_are_those_of_the_reference_in_their_order():
    names = list(inspect.signature(Trainer.fit).parameters)
    assert names[1:10] == [
        "options",
        "inputs_fn",
        "model_fn",
        "optimizers_fn",
        "losses_fn",
        "loss_creator",
        "run_prefix",
        "with_final_evaluation",
        "eval_every_X_epoch",
    ]


def test_the_arguments_of_the_trainer_are_those_of_the_reference_in_their_order():
    assert list(inspect.signature(Trainer).parameters) == [
        "callbacks_per_batch_fn",
        "callbacks_per_batch_loss_terms_fn",
        "callbacks_per_epoch_fn",
        "callbacks_pre_training_fn",
        "callbacks_post_training_fn",
        "trainer_callbacks_per_batch",
        "run_epoch_fn",
    ]


def test_fit_gives_the_model_and_the_result(fit):
    infos = {"d": {"train": {"output_mappings": {}}}}
    model, result = fit(trainer(), inputs=lambda: (datasets(), infos))
    assert isinstance(model, Net)
    assert list(result) == ["history", "options", "outputs", "datasets_infos"]
    assert result["datasets_infos"] is infos
    assert len(result["history"]) == 3
    assert list(result["outputs"]["d"]) == ["train", "valid"]
    assert result["outputs"]["d"]["valid"]["y"]["uid"].tolist() == [0, 1, 2, 3]


def test_the_model_function_gets_the_options(fit):
    seen = []

    def model_fn(options):
        seen.append(options["training_parameters"]["num_epochs"])
        return Net()

    fit(trainer(), num_epochs=1, model_fn=model_fn)
    assert seen == [1]


# What is trained and evaluated when


@pytest.mark.parametrize(
    ("num_epochs", "every", "evaluated"),
    [(7, 3, [0, 2, 5, 7]), (5, 2, [0, 1, 3, 5]), (3, 1, [0, 1, 2, 3]), (3, 9, [0, 3])],
)
def test_evaluation_splits_run_in_epoch_zero_and_every_nth_and_at_the_end(fit, num_epochs, every, evaluated):
    """T15."""

    def inputs():
        return {name: {"train": batches(4), "valid": batches(4), "test": batches(4)} for name in ("a", "b")}

    _, result = fit(trainer(), inputs=inputs, num_epochs=num_epochs, eval_every_X_epoch=every)
    assert len(result["history"]) == num_epochs + 1
    for dataset in ("a", "b"):
        present = [list(epoch[dataset]) for epoch in result["history"]]
        assert present == [["train", "valid", "test"] if e in evaluated else ["train"] for e in range(num_epochs + 1)]


def test_the_split_to_train_on_is_that_of_the_options(tmp_path):
    options = create_default_options(tmp_path, 1, "cpu")
    options["workflow_options"]["train_split"] = "valid"
    trained = []

    class Notes(Callback):
        def on_split_start(self, run):
            trained.append((run.split, run.training))

    trainer(Notes()).fit(options, datasets, lambda options: Net(), sgd)
    assert trained == [("train", False), ("valid", True), ("train", False), ("valid", False)]


def test_without_final_evaluation_there_are_no_outputs(fit):
    _, result = fit(trainer(), with_final_evaluation=False)
    assert len(result["history"]) == 2
    assert result["outputs"] is None


@pytest.mark.parametrize("optimizers_fn", [None, lambda datasets, model: (None, None)])
def test_without_optimizers_there_is_only_the_final_evaluation(fit, optimizers_fn):
    before = Net()
    model, result = fit(trainer(), optimizers_fn=optimizers_fn, model_fn=lambda options: before)
    assert len(result["history"]) == 1
    assert result["history"][0]["d"]["train"]["info"]["nb_samples"] == 6.0
    assert model is before


def test_the_final_evaluation_trains_nothing(fit):
    states = []

    class Weights(Callback):
        def on_epoch_end(self, run):
            states.append(run.model.inner.weight.detach().clone())

    model, _ = fit(trainer(Weights()))
    assert torch.equal(model.inner.weight, states[-1])


def test_steps_are_counted_and_no_gradient_is_left_at_the_end_of_an_epoch(fit):
    seen = []

    class Count(Callback):
        def on_epoch_end(self, run):
            gradients = [parameter.grad for parameter in run.model.parameters()]
            seen.append((run.nb_steps, run.nb_samples, gradients))

    fit(trainer(Count()), num_epochs=3)
    assert seen == [(3, 6, [None, None]), (6, 12, [None, None]), (9, 18, [None, None])]


def test_a_hook_may_end_the_training_after_its_epoch(fit):
    class Stop(Callback):
        def on_split_start(self, run):
            run.stop = run.epoch == 1

    _, result = fit(trainer(Stop()), num_epochs=5)
    assert len(result["history"]) == 3
    assert list(result["history"][1]["d"]) == ["train", "valid"]


def test_epochs_are_told_to_splits_that_want_them(fit):
    told = []

    class Told(list):
        def set_epoch(self, epoch):
            told.append(epoch)

    fit(trainer(), inputs=lambda: {"d": {"train": Told(batches(4))}})
    assert told == [0, 1, 2]


def test_callable_features_are_replaced_after_the_callbacks_of_the_user(fit):
    seen = []

    class Sees(Net):
        def forward(self, batch):
            seen.append(batch["z"])
            return super().forward(batch)

    def add(dataset_name, split_name, batch):
        batch["z"] = lambda batch: len(batch["x"])

    fit(trainer(callbacks_per_batch_fn=lambda: [add]), num_epochs=0, model_fn=lambda options: Sees())
    assert seen == [2, 2, 2, 2, 2]


def test_stop_iteration_of_a_callback_ends_its_split_alone(fit):
    def only_one(dataset_name, split_name, batch, loss_terms):
        if split_name == "train":
            raise StopIteration

    _, result = fit(trainer(callbacks_per_batch_loss_terms_fn=lambda: [only_one]), num_epochs=1)
    sizes = {split: measured["info"]["nb_samples"] for split, measured in result["history"][0]["d"].items()}
    assert sizes == {"train": 2.0, "valid": 4.0}


def test_a_run_epoch_function_of_the_user_gets_the_documented_arguments(fit):
    calls = []

    def run_epoch(
        options,
        datasets,
        optimizers,
        model,
        losses,
        schedulers,
        history,
        callbacks_per_batch,
        callbacks_per_batch_loss_terms,
        run_eval,
    ):
        calls.append((optimizers is not None, run_eval))
        return {"d": {}}, {"d": {"train": {"y": {"loss": float(len(calls))}}}}

    _, result = fit(trainer(run_epoch_fn=run_epoch), eval_every_X_epoch=9, num_epochs=2)
    assert calls == [(True, True), (True, False), (False, True)]
    assert [epoch["d"]["train"]["y"]["loss"] for epoch in result["history"]] == [1.0, 2.0, 3.0]


def test_a_run_epoch_function_that_hands_on_the_run_keeps_the_hooks(fit):
    calls = []

    class Look(Callback):
        def on_split_start(self, run):
            calls.append(run.split)

    def run_epoch(*arguments, **keywords):
        return epoch_train_eval(*arguments, **keywords)

    fit(trainer(Look(), run_epoch_fn=run_epoch), num_epochs=0)
    assert calls == ["train", "valid"]


def test_the_loss_function_and_its_creator_are_used(fit):
    def loss(dataset_name, batch, loss_terms):
        return 3 * default_sum_all_losses(dataset_name, batch, loss_terms)

    def creator(datasets, losses_fn):
        return {name: losses_fn for name in datasets}

    _, result = fit(trainer(), num_epochs=0, losses_fn=loss, loss_creator=creator)
    measured = result["history"][0]["d"]["valid"]
    assert measured["overall_loss"]["loss"] == pytest.approx(3 * measured["y"]["loss"])


# Callbacks


def test_every_hook_fires_in_its_place(fit):
    calls = []

    class Trace(Callback):
        pass

    for hook in HOOKS:
        setattr(Trace, hook, lambda self, run, hook=hook: calls.append(hook.removeprefix("on_")))
    fit(trainer(Trace()), num_epochs=1)
    train = ["batch_start", "forward_start", "loss", "backward_end", "step_start", "step_end", "batch_end"]
    evaluate = ["batch_start", "forward_start", "loss", "batch_end"]
    assert calls == [
        "fit_start",
        "epoch_start",
        *("split_start", *train * 3, "split_end"),
        *("split_start", *evaluate * 2, "split_end"),
        "epoch_end",
        *("split_start", *evaluate * 3, "split_end"),
        *("split_start", *evaluate * 2, "split_end"),
        "fit_end",
    ]


@pytest.mark.parametrize("num_epochs", [0, 1, 2, 5])
def test_callbacks_of_the_reference_see_the_history_grow(fit, num_epochs):
    """T45."""
    seen = []

    def callback(options, history, model, losses, outputs, datasets, datasets_infos, callbacks_per_batch, **kwargs):
        splits = None if outputs is None else list(outputs["d"])
        seen.append((len(history), splits, sorted(kwargs), kwargs.get("last_epoch")))

    fit(trainer(callback, pre=[callback], post=[callback]), num_epochs=num_epochs)
    per_epoch = ["last_epoch", "optimizers", "optimizers_fn"]
    assert seen == [
        (0, None, ["optimizers", "optimizers_fn"], None),
        *((e, ["train", "valid"], per_epoch, e == num_epochs) for e in range(1, num_epochs + 1)),
        (num_epochs + 1, ["train", "valid"], ["optimizers_fn"], None),
    ]


def test_callbacks_are_made_once_in_each_fit(fit):
    made = []

    def make(name):
        def callbacks():
            made.append(name)
            return []

        return callbacks

    mine = Trainer(*(make(name) for name in ("batch", "terms", "epoch", "pre", "post")))
    fit(mine)
    fit(mine)
    assert sorted(made) == sorted(2 * ["batch", "terms", "epoch", "pre", "post"])


def test_there_may_be_no_callbacks_at_all(fit):
    nothing = Trainer(
        callbacks_per_epoch_fn=None,
        callbacks_pre_training_fn=None,
        callbacks_post_training_fn=None,
        trainer_callbacks_per_batch=None,
    )
    assert len(fit(nothing)[1]["history"]) == 3


def test_the_learning_rate_of_a_row_is_that_of_its_epoch(fit, tmp_path):
    optimizers_fn = functools.partial(
        create_sgd_optimizers_scheduler_step_lr_fn, learning_rate=1e-7, step_size=1, gamma=0.5
    )
    fit(trainer(CallbackTrainLog()), optimizers_fn=optimizers_fn, num_epochs=3)
    with (tmp_path / "default_r0" / "trainlog.csv").open(newline="") as file:
        assert [float(row["learning_rate[d]"]) for row in csv.DictReader(file)] == [1e-7, 5e-8, 2.5e-8]


def test_plots_of_every_epoch_if_the_callback_hangs_there(fit, tmp_path):
    fit(trainer(CallbackExportHistory("plots", ["sensitivity"])), num_epochs=1)
    assert [path.name for path in (tmp_path / "default_r0" / "plots").iterdir()] == ["d_y_sensitivity.png"]
