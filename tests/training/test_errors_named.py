"""An error that ends a training says which batch it was: dataset, split, number and samples."""

import re

import pytest
import torch
from toy_trainer import Net, batches, broken, fitting_in, trainer

from trw_pipeline.errors import NonFiniteLossError
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.metrics import Metric
from trw_pipeline.training.prediction import evaluate, predict


class Unfit(Exception):
    pass


class Fails:
    """Raises where it is called, or otherwise used, for the third time."""

    def __init__(self, error):
        self.error, self.nb_calls = error, 0

    def __call__(self, *args, **kwargs):
        self.nb_calls += 1
        if self.nb_calls == 3:
            raise self.error


class FailingMetric(Metric):
    def __init__(self, fails, in_figures=False):
        self.fails, self.in_figures = fails, in_figures

    def measure(self, raw, output, truth):
        if not self.in_figures:
            self.fails()
        return {"nb": len(raw)}

    def figures(self, totals):
        if self.in_figures:
            self.fails()
        return {}


class Failing(Net):
    def __init__(self, fails, where):
        super().__init__()
        self.fails, self.where = fails, where

    def forward(self, batch):
        if self.where == "model":
            self.fails()
        arguments = {}
        if self.where == "criterion":
            arguments["criterion_fn"] = lambda: self.criterion
        if self.where in ("metric", "figures"):
            arguments["metrics"] = [FailingMetric(self.fails, self.where == "figures")]
        return {"y": OutputClassification(self.inner(batch["x"]), "truth", **arguments)}

    def criterion(self, output, truth):
        self.fails()
        return output[:, 0]


def notes_of(error):
    return "\n".join(error.__notes__)


def splits():
    return {"d": {"train": batches(8), "valid": batches(4)}}


@pytest.mark.parametrize("where", ["model", "criterion", "metric", "loss"])
def test_what_judges_a_batch_names_it_when_it_fails(tmp_path, where):
    fails = Fails(Unfit("no"))

    def loss(dataset_name, batch, terms):
        if where == "loss":
            fails()
        return terms["y"]["loss"]

    with pytest.raises(Unfit) as raised:
        fitting_in(tmp_path)(
            trainer(), inputs=splits, model_fn=lambda options: Failing(fails, where), losses_fn=loss, num_epochs=1
        )
    assert str(raised.value) == "no"
    assert "raised at batch 2 of d/train, epoch 0; sample_uid of the batch: [4, 5]" in notes_of(raised.value)
    assert ("raised by the head 'y'" in notes_of(raised.value)) == (where in ("criterion", "metric"))


def test_what_sums_up_a_split_names_it_when_it_fails(tmp_path):
    fails = Fails(Unfit("no"))  # after training and validation of the first epoch
    with pytest.raises(Unfit) as raised:
        fitting_in(tmp_path)(trainer(), inputs=splits, model_fn=lambda options: Failing(fails, "figures"))
    assert notes_of(raised.value) == "raised by the head 'y'\nraised where d/train is summed up, epoch 1"


@pytest.mark.parametrize("hook", ["on_batch_start", "on_loss", "on_backward_end", "on_batch_end"])
def test_a_hook_names_the_batch_too(tmp_path, hook):
    with pytest.raises(Unfit) as raised:
        fitting_in(tmp_path)(trainer(broken(Unfit("no"), hook)), inputs=splits)
    assert f"at {hook}, epoch 0" in raised.value.__notes__[0]
    assert "batch 0 of d/train" in raised.value.__notes__[1]


@pytest.mark.parametrize("judges", [evaluate, predict])
def test_evaluation_and_prediction_name_it(judges):
    model = Failing(Fails(Unfit("no")), "model")
    with pytest.raises(Unfit) as raised:
        judges(model, batches(8), split_name="test")
    assert re.search(r"batch 2 of (dataset)?/test, epoch 0; sample_uid of the batch: \[4, 5\]", notes_of(raised.value))


def test_a_stop_iteration_names_it_too(tmp_path):
    with pytest.raises(RuntimeError, match="in d/train") as raised:
        fitting_in(tmp_path)(
            trainer(), inputs=splits, model_fn=lambda options: Failing(Fails(StopIteration()), "model")
        )
    assert "batch 2 of d/train" in notes_of(raised.value.__cause__)


@pytest.mark.parametrize("uids", [torch.arange(10_000), [str(i) for i in range(10_000)]], ids=["tensor", "list"])
def test_of_many_samples_the_first_are_named(uids):
    batch = {"x": torch.zeros(10_000, 3), "truth": torch.zeros(10_000, dtype=torch.int64), "sample_uid": uids}
    fails = Fails(Unfit("no"))
    fails.nb_calls = 2
    with pytest.raises(Unfit) as raised:
        evaluate(Failing(fails, "model"), [batch])
    (note,) = raised.value.__notes__
    assert [int(number) for number in re.findall(r"\d+", note.partition("batch: ")[2])] == list(range(20))


@pytest.mark.parametrize(("batch", "named"), [({"x": torch.zeros(2, 3)}, "None"), ([1], "None")])
def test_batches_without_uids_are_named_by_their_number(batch, named):
    with pytest.raises((ValueError, TypeError)) as raised:
        evaluate(Net(), [batch])
    assert f"batch 0 of dataset/split, epoch 0; sample_uid of the batch: {named}" in notes_of(raised.value)


def test_uids_that_a_failed_device_no_longer_tells_do_not_hide_the_error():
    class Lost(torch.Tensor):
        def tolist(self):
            raise RuntimeError("device-side assert")

    fails = Fails(Unfit("no"))
    fails.nb_calls = 2
    uids = torch.arange(2).as_subclass(Lost)
    with pytest.raises(Unfit) as raised:
        evaluate(Failing(fails, "model"), [{"x": torch.zeros(2, 3), "sample_uid": uids}])
    assert "sample_uid of the batch: not readable" in raised.value.__notes__[0]


def test_a_loss_that_is_no_number_names_its_own_batch_alone(tmp_path):
    """From an accelerator that is known some batches later."""
    made = batches(8)
    made[1]["x"] = made[1]["x"] * torch.nan
    with pytest.raises(NonFiniteLossError, match=r"batch 1, .*\[2, 3\]") as raised:
        fitting_in(tmp_path)(trainer(), inputs=lambda: {"d": {"train": made}})
    assert not hasattr(raised.value, "__notes__")
