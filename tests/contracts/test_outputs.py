"""What every head of the package promises. A new head is added to `HEADS`."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.output import Output, Totals
from trw_pipeline.training.history import SplitMeter


def classification(nb_samples, **arguments):
    generator = torch.Generator().manual_seed(nb_samples)
    leaf = torch.randn(nb_samples, 2, generator=generator, requires_grad=True)
    batch = {"truth": torch.randint(0, 2, (nb_samples,), generator=generator), "sample_uid": np.arange(nb_samples)}
    return leaf, OutputClassification(2 * leaf, "truth", **arguments), batch


HEADS = {"classification": classification}
every_head = pytest.mark.parametrize("create", HEADS.values(), ids=HEADS.keys())


class HostReads(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def tensors(value):
    if isinstance(value, dict):
        return [tensor for inner in value.values() for tensor in tensors(inner)]
    return [value] if isinstance(value, torch.Tensor) else []


@every_head
def test_only_the_loss_has_a_graph(create):
    _, head, batch = create(4)
    term = head.evaluate_batch(batch, True)
    assert term["loss"].requires_grad
    assert not [tensor for tensor in tensors(term) if tensor.requires_grad and tensor is not term["loss"]]


@every_head
def test_the_loss_reaches_the_model(create):
    leaf, head, batch = create(4)
    head.evaluate_batch(batch, True)["loss"].backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().sum() > 0


@every_head
@pytest.mark.parametrize("is_training", [True, False])
def test_no_value_is_read_on_the_host(create, is_training):
    _, head, batch = create(4)
    reads = HostReads()
    with reads:
        head.evaluate_batch(batch, is_training)
    assert reads.count == 0


@every_head
def test_the_batch_is_not_changed(create):
    _, head, batch = create(4)
    before = {name: value.copy() if isinstance(value, np.ndarray) else value.clone() for name, value in batch.items()}
    head.evaluate_batch(batch, True)
    assert list(batch) == list(before)
    assert all((batch[name] == before[name]).all() for name in batch)


@pytest.mark.slow
@every_head
def test_the_graph_is_free_when_the_batch_is_done(create):
    leaf, head, batch = create(4)
    term = head.evaluate_batch(batch, True)
    head.loss_term_cleanup(term)
    del term["loss"]
    alive = weakref.ref(leaf)
    del leaf
    gc.collect()
    assert alive() is None


@every_head
def test_it_names_itself_in_its_term(create):
    _, head, batch = create(4)
    assert head.evaluate_batch(batch, True)[Output.output_ref_tag] is head


@every_head
def test_figures_do_not_depend_on_how_samples_are_cut_into_batches(create):
    _, whole, batch = create(11)
    raw = whole.output
    histories = []
    for size in (11, 4, 1):
        meter = SplitMeter()
        for start in range(0, 11, size):
            part = {name: value[start : start + size] for name, value in batch.items()}
            _, head, _ = create(1)
            head.output = raw[start : start + size]
            term = head.evaluate_batch(part, False)
            meter.add({"y": term}, term["loss"], len(head.output))
        histories.append(meter.read()[1])
    for history in histories[1:]:
        assert history["y"] == pytest.approx(histories[0]["y"], abs=1e-6)


@every_head
def test_the_history_is_of_plain_floats(create):
    _, head, batch = create(4)
    meter = SplitMeter()
    term = head.evaluate_batch(batch, False)
    meter.add({"y": term}, term["loss"], 4)
    figures = meter.read()[1]["y"]
    assert "loss" in figures
    assert {type(value) for value in figures.values()} == {float}


@every_head
def test_without_collecting_it_keeps_no_output(create):
    _, head, batch = create(4, collect_output=False)
    term = head.evaluate_batch(batch, False)
    kept = {name for name, value in term.items() if isinstance(value, torch.Tensor) and value.dim()}
    assert kept <= {"losses", "uid"}
    assert all(isinstance(value, (int, float)) or value.dim() == 0 for value in Totals(term["metrics"]).values())
