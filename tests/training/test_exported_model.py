"""A model as a function of tensors, and that it does not notice."""

import random
import sys

import numpy as np
import pytest
import torch
from torch import nn

from trw_pipeline.errors import MissingExtraError
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.regression import OutputRegression
from trw_pipeline.training.exported_model import export_model

pytestmark = pytest.mark.slow


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.last = nn.Linear(4, 2)

    def forward(self, batch):
        inner = self.inner(batch["x"].float() + batch["shift"])
        return {"y": OutputClassification(self.last(inner), "truth"), "z": OutputRegression(inner, "number")}


def batch(nb_samples=5):
    generator = torch.Generator().manual_seed(nb_samples)
    return {
        "truth": torch.zeros(nb_samples, dtype=torch.long),
        "x": torch.randint(0, 9, (nb_samples, 3), generator=generator),
        "shift": torch.tensor(0.5),
        "name": ["a"] * nb_samples,
    }


def judged(model, inputs):
    model.eval()
    with torch.no_grad():
        return {name: head.output for name, head in model(inputs).items()}


@pytest.mark.parametrize("nb_traced", [1, 5])
def test_it_gives_what_the_model_gives_for_any_number_of_samples(nb_traced):
    model = Net()
    exported = export_model(model, batch(nb_traced))
    assert (exported.inputs, exported.outputs) == (("x", "shift"), ("y", "z"))
    assert exported.has_any_batch_size
    for nb_samples in (1, 2, 7):
        given = batch(nb_samples)
        found = exported.program.module()(given["x"], given["shift"])
        for tensor, expected in zip(found, judged(model, given).values(), strict=True):
            assert torch.equal(tensor, expected)


def test_the_model_and_all_generators_stay_as_they_were():
    model = Net()
    model.train()
    model.inner[1].eval()
    heads = model(batch())
    sum(head.output.sum() for head in heads.values()).backward()
    model.last.register_forward_hook(lambda module, inputs, output: None)

    def all_of(model):
        tensors = {name: value.clone() for name, value in model.state_dict().items()}
        tensors |= {f"{name}.grad": value.grad.clone() for name, value in model.named_parameters()}
        hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
        return tensors, hooks, [part.training for part in model.modules()]

    before = all_of(model)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    export_model(model, batch())
    after = all_of(model)
    assert before[1:] == after[1:]
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])
    assert all(value.requires_grad for value in model.parameters())
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_a_model_that_reads_its_batch_unseen_takes_all_tensors():
    class Copies(Net):
        def forward(self, batch):
            return super().forward(dict(batch.items()))

    exported = export_model(Copies(), batch())
    assert exported.inputs == ("truth", "x", "shift")
    given = batch(2)
    found = exported.program.module()(given["truth"], given["x"], given["shift"])
    assert [len(tensor) for tensor in found] == [2, 2]


def test_a_model_made_for_one_number_of_samples_says_so():
    class Fixed(Net):
        def forward(self, batch):
            return super().forward(batch | {"x": batch["x"].reshape(5, 3)})

    exported = export_model(Fixed(), {"x": torch.zeros(5, 3), "shift": torch.zeros(())})
    assert not exported.has_any_batch_size


def test_in_onnx_it_gives_the_same_for_any_number_of_samples():
    import onnxruntime

    model = Net()
    session = onnxruntime.InferenceSession(export_model(model, batch()).as_onnx())
    assert [one.name for one in session.get_inputs()] == ["x", "shift"]
    assert [one.name for one in session.get_outputs()] == ["y", "z"]
    for nb_samples in (1, 2, 7):
        given = batch(nb_samples)
        found = session.run(None, {name: given[name].numpy() for name in ("x", "shift")})
        for array, expected in zip(found, judged(model, given).values(), strict=True):
            np.testing.assert_allclose(array, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("absent", ["onnx", "onnxscript"])
def test_without_what_makes_onnx_the_error_says_what_to_install(monkeypatch, absent):
    exported = export_model(Net(), batch())
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'trw_pipeline\[onnx\]'"):
        exported.as_onnx()
