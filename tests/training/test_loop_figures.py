import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, log_loss, recall_score
from torch import nn
from toy_training import CPU, Constant, Net, batches, evaluate, model_of, samples, sgd, train

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.training.loop import create_losses_fn, default_sum_all_losses, train_loop, trainer_callbacks_per_batch


def test_weights_and_losses_are_those_of_a_hand_written_loop():
    """LOOP-1, statistics of batch normalisation included."""
    torch.manual_seed(0)
    mine = Net(dropout=0.5)
    theirs = copy.deepcopy(mine)
    data, held_out = batches(23, 4), batches(11, 2, seed=1)

    torch.manual_seed(1)
    optimizer = sgd(mine)
    measured = [(train(mine, data, optimizer)[1], evaluate(mine, held_out)[1]) for _ in range(2)]

    torch.manual_seed(1)
    optimizer = sgd(theirs)
    expected = []
    for _ in range(2):
        theirs.train()
        summed = 0.0
        for batch in data:
            loss = F.cross_entropy(theirs.body(batch["x"]), batch["truth"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            summed += loss.item() * len(batch["x"])
        theirs.eval()
        with torch.no_grad():
            everything = samples(11, seed=1)
            held_out_loss = F.cross_entropy(theirs.body(everything["x"]), everything["truth"]).item()
        expected.append((summed / 23, held_out_loss))

    assert all(
        torch.equal(one, other)
        for one, other in zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True)
    )
    losses = [tuple(history["overall_loss"]["loss"] for history in pair) for pair in measured]
    assert losses == [pytest.approx(pair, abs=1e-6) for pair in expected]


@pytest.mark.parametrize(("nb_samples", "batch_size"), [(11, 2), (67, 32)])
def test_figures_are_those_of_all_samples_at_once(nb_samples, batch_size):
    """T11, LOOP-2."""
    model = Net()
    outputs, history = evaluate(model, batches(nb_samples, batch_size))
    whole = samples(nb_samples)
    with torch.no_grad():
        scores = model.eval().body(whole["x"])
    truth, found = whole["truth"].numpy(), scores.argmax(1).numpy()
    expected = {
        "loss": log_loss(truth, scores.double().softmax(1).numpy(), labels=[0, 1]),
        "classification error": 1 - accuracy_score(truth, found),
        "sensitivity": recall_score(truth, found, pos_label=1),
        "specificity": recall_score(truth, found, pos_label=0),
    }
    assert history["y"] == {name: pytest.approx(value, abs=1e-6) for name, value in expected.items()}
    assert np.allclose(outputs["y"]["output_raw"], scores.numpy(), atol=1e-6)


def test_a_training_without_progress_has_the_same_loss_in_training_and_evaluation():
    """T11."""
    model = nn.Linear(3, 2)

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, batch):
            return {"y": OutputClassification(self.inner(batch["x"]), "truth")}

    net = Plain()
    data = batches(11, 2)
    trained = train(net, data, torch.optim.SGD(net.parameters(), lr=0.0))[1]["overall_loss"]["loss"]
    whole = samples(11)
    assert trained == pytest.approx(F.cross_entropy(model(whole["x"]), whole["truth"]).item(), abs=1e-6)
    assert evaluate(net, data)[1]["overall_loss"]["loss"] == pytest.approx(trained, abs=1e-6)


def test_the_overall_loss_is_the_sum_of_the_heads_that_have_one():
    """T13."""
    model = model_of({"a": Constant(torch.tensor(2.0)), "b": Constant(0.5), "record": Constant(None)})
    _, history = evaluate(model, batches(3, 2))
    history.pop("info")
    assert history == {"a": {"loss": 2.0}, "b": {"loss": 0.5}, "overall_loss": {"loss": 2.5}}


def test_without_any_loss_the_sum_is_a_number_and_nothing_is_optimised():
    assert default_sum_all_losses("d", {}, {"record": {"note": 1}}) == 0.0
    model = Net()
    before = copy.deepcopy(model.body[2].state_dict())
    optimizer = sgd(model)
    train(model_of({"record": Constant(None)}), batches(4, 2), optimizer)
    assert all(torch.equal(value, before[name]) for name, value in model.body[2].state_dict().items())


def test_the_sum_of_losses_has_their_graph():
    first, second = torch.ones((), requires_grad=True), torch.ones((), requires_grad=True)
    default_sum_all_losses("d", {}, {"a": {"loss": 2 * first}, "b": {"loss": 3 * second}}).backward()
    assert (first.grad.item(), second.grad.item()) == (2.0, 3.0)


def test_an_optional_head_is_passed_over_where_its_classes_are_absent():
    def heads(batch):
        return {
            "y": OutputClassification(torch.zeros(len(batch["x"]), 2), "truth", maybe_optional=True),
            "z": Constant(torch.tensor(1.0)),
        }

    data = batches(4, 2)
    del data[1]["truth"]
    outputs, history = evaluate(model_of(heads), data)
    assert len(outputs["y"]["output_truth"]) == 2
    assert history["y"]["loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert history["overall_loss"]["loss"] == pytest.approx(np.log(2) / 2 + 1, abs=1e-6)


def test_each_dataset_gets_the_same_loss_function():
    assert create_losses_fn({"a": {}, "b": {}}, default_sum_all_losses) == {
        "a": default_sum_all_losses,
        "b": default_sum_all_losses,
    }


# What a batch becomes


def test_the_model_sees_tensors_with_the_names_of_where_they_come_from():
    seen = []

    def heads(batch):
        seen.append(dict(batch))
        return {"y": Constant(0.0)}

    evaluate(model_of(heads), [{"x": np.ones((2, 3), np.float32), "note": "n"}])
    assert isinstance(seen[0]["x"], torch.Tensor)
    assert (seen[0]["note"], seen[0]["dataset_name"], seen[0]["split_name"]) == ("n", "d", "valid")


def test_the_batch_of_the_caller_is_not_modified():
    batch = {"x": np.ones((2, 3), np.float32), "z": lambda batch: 1}
    before = dict(batch)

    def edit(dataset_name, split_name, batch):
        batch["x"] = 0
        batch["new"] = torch.zeros(2)

    evaluate(model_of({"y": Constant(0.0)}), [batch], ([trainer_callbacks_per_batch, edit], None))
    assert batch == before


def test_callable_features_are_replaced_by_what_they_return():
    batch = {"x": torch.ones(4, 2), "z": lambda batch: torch.zeros(len(batch["x"]), 3)}
    trainer_callbacks_per_batch("d", "s", batch)
    assert batch["z"].shape == (4, 3)


def test_a_callback_may_edit_the_batch_before_the_model_sees_it():
    def flip(dataset_name, split_name, batch):
        batch["truth"] = 1 - batch["truth"]

    model = Net()
    data = batches(9, 4)
    plain = evaluate(model, data)[1]["y"]["classification error"]
    flipped = evaluate(model, data, ([flip], None))[1]["y"]["classification error"]
    assert flipped == pytest.approx(1 - plain, abs=1e-12)


def test_loss_terms_are_shown_after_the_step():
    model = Net()
    first = model.body[2].weight.detach().clone()
    seen = []

    def look(dataset_name, split_name, batch, loss_terms):
        seen.append((dataset_name, split_name, list(loss_terms), not torch.equal(model.body[2].weight, first)))

    train(model, batches(4, 4), callbacks=(None, [look]))
    assert seen == [("d", "train", ["y"], True)]


# Modes and gradients


def test_training_mode_and_gradients_in_training_and_neither_in_evaluation():
    """LOOP-1."""
    model = Net()
    train(model, batches(4, 2))
    evaluate(model, batches(4, 2))
    train(model, batches(4, 2))
    assert model.seen == [(True, True)] * 2 + [(False, False)] * 2 + [(True, True)] * 2


def modes(model):
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("loop", [train, evaluate])
@pytest.mark.parametrize("training", [True, False])
def test_every_part_is_put_back_into_its_mode(loop, training):
    model = Net().train(training)
    model.body[0].train(not training)
    before = modes(model)
    loop(model, batches(4, 2))
    assert modes(model) == before


def test_mode_and_gradients_are_put_back_after_an_evaluation_that_raised():
    """LOOP-1."""
    model = Net()
    with pytest.raises(ValueError, match="truth"):
        evaluate(model, [{"x": torch.ones(2, 3)}])
    assert all(modes(model))
    assert torch.is_grad_enabled()
    train(model, batches(2, 2))
    assert model.seen[-1] == (True, True)


def test_gradients_are_gone_when_a_split_ends():
    model = Net()
    train(model, batches(6, 2))
    assert [parameter.grad for parameter in model.parameters()] == [None] * 4


def test_gradients_from_before_do_not_count():
    """LOOP-3."""
    mine, theirs = Net(), Net()
    theirs.load_state_dict(mine.state_dict())
    for parameter in mine.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)
    for model in (mine, theirs):
        train(model, batches(6, 2))
    assert torch.equal(mine.body[2].weight, theirs.body[2].weight)


def test_without_an_optimizer_gradients_add_up():
    model = model_with_leaf = nn.ParameterDict({"w": torch.zeros(())})

    class Leaf(nn.Module):
        def forward(self, batch):
            return {"y": Constant(3 * model_with_leaf["w"])}

    train_loop(CPU, "d", "train", batches(4, 2), None, Leaf(), default_sum_all_losses, None, None, None)
    assert model["w"].grad.item() == 6.0


def test_without_backward_nothing_is_optimised_in_training_mode():
    model = Net()
    before = copy.deepcopy(model.body[2].state_dict())
    train(model, batches(4, 2), apply_backward=False)
    assert model.seen == [(True, True)] * 2
    assert all(torch.equal(value, before[name]) for name, value in model.body[2].state_dict().items())
    assert model.body[2].weight.grad is None


def test_a_head_has_no_graph_when_the_split_is_over():
    outputs, _ = train(Net(), batches(4, 2))
    assert outputs["y"]["output_ref"].output is None
