"""What every head of the package promises. A new head is added to `HEADS`."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.classification_metrics import MetricAUROC, MetricF1, default_classification_metrics
from trw_pipeline.outputs.embedding import OutputEmbedding
from trw_pipeline.outputs.output import Output, Rows, Update
from trw_pipeline.outputs.record import OutputRecord
from trw_pipeline.outputs.regression import OutputRegression
from trw_pipeline.outputs.regression_metrics import MetricRootMeanSquaredError, default_regression_metrics
from trw_pipeline.outputs.segmentation import OutputSegmentation
from trw_pipeline.outputs.segmentation_metrics import MetricDice, MetricIoU
from trw_pipeline.training.history import SplitMeter
from trw_pipeline.training.loop import default_sum_all_losses


def of_samples(nb_samples, create, shape, target):
    """A leaf, the head on what is computed from it, and the batch; the same samples for the same number of them."""
    generator = torch.Generator().manual_seed(nb_samples)
    leaf = torch.randn(nb_samples, *shape, generator=generator, requires_grad=True)
    batch = {"truth": target(generator), "weight": torch.rand(nb_samples, generator=generator)}
    batch["sample_uid"] = np.arange(nb_samples)
    return leaf, create(2 * leaf), batch


def classification(nb_samples, **arguments):
    metrics = [*default_classification_metrics(), MetricF1(), MetricAUROC()]
    arguments = {"metrics": metrics, "weight_name": "weight"} | arguments
    return of_samples(
        nb_samples,
        lambda output: OutputClassification(output, "truth", **arguments),
        (2,),
        lambda generator: torch.randint(0, 2, (nb_samples,), generator=generator),
    )


def regression(nb_samples, **arguments):
    metrics = [*default_regression_metrics(), MetricRootMeanSquaredError()]
    arguments = {"metrics": metrics, "weight_name": "weight"} | arguments
    return of_samples(
        nb_samples,
        lambda output: OutputRegression(output, "truth", **arguments),
        (3,),
        lambda generator: torch.randn(nb_samples, 3, generator=generator),
    )


def segmentation(nb_samples, **arguments):
    metrics = [MetricDice(include_background=True), MetricIoU(by_sample=True)]
    arguments = {"metrics": metrics, "weight_name": "weight", "collect_only_non_training_output": False} | arguments
    return of_samples(
        nb_samples,
        lambda output: OutputSegmentation(output, "truth", **arguments),
        (3, 5, 4),
        lambda generator: torch.randint(0, 3, (nb_samples, 1, 5, 4), generator=generator).byte(),
    )


def embedding(nb_samples, collect_output=True):
    return of_samples(
        nb_samples,
        lambda output: OutputEmbedding(output, clean_loss_term_each_batch=not collect_output),
        (4,),
        lambda generator: torch.zeros(nb_samples),
    )


def record(nb_samples):
    return of_samples(nb_samples, OutputRecord, (4,), lambda generator: torch.zeros(nb_samples))


OPTIMISED = {"classification": classification, "regression": regression, "segmentation": segmentation}
HEADS = OPTIMISED | {"embedding": embedding, "record": record}
every_head = pytest.mark.parametrize("create", HEADS.values(), ids=HEADS.keys())
every_optimised_head = pytest.mark.parametrize("create", OPTIMISED.values(), ids=OPTIMISED.keys())


class HostReads(TorchDispatchMode):
    """Counts what makes the host wait for a device: values that are read, and shapes that depend on values."""

    WAITING = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "bincount",
        "_unique",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "equal",
    )

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_mask = func.overloadpacket.__name__ in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if by_mask or func.overloadpacket.__name__ in self.WAITING:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def tensors(value):
    if isinstance(value, dict):
        return [tensor for inner in value.values() for tensor in tensors(inner)]
    if isinstance(value, Rows):
        return [value.values]
    if isinstance(value, Update):
        return list(value.inputs)
    return [value] if isinstance(value, torch.Tensor) else []


def metered(create, batch_sizes, **arguments):
    """The same samples, cut into batches: what the split gathered, and its history."""
    nb_samples = sum(batch_sizes)
    meter = SplitMeter()
    start = 0
    for size in batch_sizes:
        _, head, batch = create(nb_samples, **arguments)
        part = {name: value[start : start + size] for name, value in batch.items()}
        head.output = head.output[start : start + size]
        term = head.evaluate_batch(part, False)
        meter.add({"y": term}, term.get("loss", 0.0), size)
        head.loss_term_cleanup(term)
        start += size
    return meter.read()


@every_head
def test_only_the_loss_has_a_graph(create):
    _, head, batch = create(4)
    term = head.evaluate_batch(batch, True)
    assert tensors(term)
    assert not [tensor for tensor in tensors(term) if tensor.requires_grad and tensor is not term.get("loss")]


@every_optimised_head
def test_the_loss_reaches_the_model(create):
    leaf, head, batch = create(4)
    head.evaluate_batch(batch, True)["loss"].backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().sum() > 0


@every_head
@pytest.mark.parametrize("is_training", [True, False])
def test_no_value_is_read_on_the_host(create, is_training):
    meter = SplitMeter()
    reads = HostReads()
    for _ in range(3):
        _, head, batch = create(4)
        with reads:
            term = head.evaluate_batch(batch, is_training)
            meter.add({"y": term}, term.get("loss", 0.0), 4)
    assert reads.found == []


def test_the_probe_of_host_reads_finds_them():
    reads = HostReads()
    with reads:
        values = torch.arange(3)
        _ = values[values > 1]
        values.sum().item()
        values.unique()
    assert len(reads.found) == 3


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
    term.pop("loss", None)
    alive = weakref.ref(leaf)
    del leaf
    gc.collect()
    assert alive() is None


@every_head
def test_a_head_judges_one_batch(create):
    _, head, batch = create(4)
    head.loss_term_cleanup(head.evaluate_batch(batch, True))
    with pytest.raises(RuntimeError, match="judges one batch"):
        head.evaluate_batch(batch, True)


@every_head
def test_it_names_itself_in_its_term(create):
    _, head, batch = create(4)
    assert head.evaluate_batch(batch, True)[Output.output_ref_tag] is head


@every_head
def test_figures_do_not_depend_on_how_samples_are_cut_into_batches(create):
    """LOOP-2, and T11: 11 samples in batches of 2, 67 in batches of 32."""
    for whole, cuts in ((11, ([2] * 5 + [1], [4, 4, 3], [1] * 11)), (67, ([32, 32, 3],))):
        expected = metered(create, [whole])[1]
        for cut in cuts:
            history = metered(create, cut)[1]
            assert history.keys() == expected.keys()
            for output in history:
                assert history[output] == pytest.approx(expected[output], abs=1e-6)


def live_tensors():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.slow
@every_head
def test_as_many_tensors_live_after_many_batches_as_after_a_few(create):
    """MEM-7, of a split."""
    meter = SplitMeter()
    counts = []
    for nb_batches in (4, 12):
        for _ in range(nb_batches):
            _, head, batch = create(4)
            term = head.evaluate_batch(batch, True)
            meter.add({"y": term}, term.get("loss", 0.0), 4)
            head.loss_term_cleanup(term)
        counts.append(live_tensors())
    assert counts[0] == counts[1]


@pytest.mark.slow
def test_a_split_of_all_heads_reads_no_value_before_its_end():
    """T14: over 100 batches; and T13: each head has its path in the history, the overall loss is their sum."""
    reads = HostReads()
    meter = SplitMeter()
    for _ in range(100):
        made = {name: create(3) for name, create in HEADS.items()}
        with reads:
            terms = {name: head.evaluate_batch(batch, False) for name, (_, head, batch) in made.items()}
            loss = default_sum_all_losses("d", {}, terms)
            meter.add(terms, loss, 3)
    assert reads.found == []
    history = meter.read()[1]
    assert set(history) == {*OPTIMISED, "overall_loss"}
    total = sum(history[name]["loss"] for name in OPTIMISED)
    assert history["overall_loss"]["loss"] == pytest.approx(total, abs=1e-6)


@every_head
def test_all_samples_are_gathered_in_their_order(create):
    outputs, whole = metered(create, [4, 4, 3])[0]["y"], metered(create, [11])[0]["y"]
    gathered = [name for name, value in whole.items() if isinstance(value, np.ndarray) and value.ndim]
    assert "output" in gathered
    for name in gathered:
        assert len(whole[name]) == 11
        np.testing.assert_array_equal(outputs[name], whole[name])


@every_head
def test_the_history_is_of_plain_floats(create):
    figures = metered(create, [4])[1].get("y", {})
    assert ("loss" in figures) == (create in OPTIMISED.values())
    assert {type(value) for value in figures.values()} <= {float}


@pytest.mark.parametrize("create", [*OPTIMISED.values(), embedding], ids=[*OPTIMISED, "embedding"])
def test_without_collecting_it_keeps_no_output(create):
    outputs = metered(create, [4, 3], collect_output=False)[0]["y"]
    kept = {name: value.shape for name, value in outputs.items() if isinstance(value, np.ndarray) and value.ndim}
    assert kept.items() <= {"losses": (7,), "uid": (7,)}.items()


@every_optimised_head
@pytest.mark.parametrize(
    ("collect", "only_evaluation", "is_training", "expected"),
    [
        (True, False, True, True),
        (True, False, False, True),
        (True, True, True, False),
        (True, True, False, True),
        (False, False, False, False),
        (False, True, False, False),
    ],
)
def test_when_outputs_are_collected(create, collect, only_evaluation, is_training, expected):
    _, head, batch = create(4, collect_output=collect, collect_only_non_training_output=only_evaluation)
    term = head.evaluate_batch(batch, is_training)
    assert [name in term for name in ("output_raw", "output", "output_truth")] == [expected] * 3


@every_optimised_head
def test_a_weight_of_zero_takes_a_sample_out_and_one_of_two_counts_it_twice(create):
    _, head, batch = create(3)
    plain = create(3, weight_name=None)[1].evaluate_batch(batch, True)["losses"].reshape(3, -1).mean(1)
    batch["weight"] = torch.tensor([1.0, 0.0, 2.0])
    term = head.evaluate_batch(batch, True)
    assert term["losses"].reshape(3, -1).mean(1).tolist() == pytest.approx((plain * batch["weight"]).tolist(), rel=1e-6)
    assert term["loss"].item() == pytest.approx((plain * batch["weight"]).mean().item(), rel=1e-6)


@every_optimised_head
def test_the_scaling_scales_the_loss_alone(create):
    _, head, batch = create(4)
    plain = head.evaluate_batch(batch, True)
    scaled = create(4, loss_scaling=10.0)[1].evaluate_batch(batch, True)
    assert scaled["loss"].item() == pytest.approx(10 * plain["loss"].item(), rel=1e-6)
    assert torch.equal(scaled["losses"], plain["losses"])


@every_optimised_head
def test_the_reduction_makes_the_loss(create):
    _, head, batch = create(4, loss_reduction=torch.max)
    term = head.evaluate_batch(batch, True)
    assert term["loss"].item() == term["losses"].max().item()


@every_head
@pytest.mark.parametrize("uid", [torch.arange(4), ["a", "b", "c", "d"], None])
def test_uids_are_kept_in_their_own_kind(create, uid):
    _, head, batch = create(4)
    batch.pop("sample_uid")
    if uid is not None:
        batch["sample_uid"] = uid
    term = head.evaluate_batch(batch, True)
    assert term.get("uid") is (uid if head.sample_uid_name else None)


@every_optimised_head
def test_what_is_absent_is_named(create):
    for absent in ("truth", "weight"):
        _, head, batch = create(4)
        del batch[absent]
        with pytest.raises(ValueError, match=rf"'{absent}'.*sample_uid"):
            head.evaluate_batch(batch, True)


@every_optimised_head
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_a_loss_in_float32_near_that_of_full_precision(create, dtype):
    leaf, head, batch = create(4)
    exact = head.evaluate_batch(batch, True)["loss"]
    _, half, _ = create(4)
    half.output = (2 * leaf).to(dtype)
    term = half.evaluate_batch(batch, True)
    assert term["loss"].dtype == torch.float32
    assert term["loss"].item() == pytest.approx(exact.item(), rel=2e-2)
    term["loss"].backward()
    assert leaf.grad.abs().sum() > 0


@every_optimised_head
def test_defaults_are_made_for_each_head(create):
    first, second = create(2, metrics=None)[1], create(2, metrics=None)[1]
    assert first.metrics
    assert not {id(metric) for metric in first.metrics} & {id(metric) for metric in second.metrics}


@every_optimised_head
@pytest.mark.parametrize("metric", ["accuracy", 3, object(), dict])
def test_what_is_no_metric_is_refused(create, metric):
    with pytest.raises(TypeError, match="a metric of a head must be a Metric or have update, compute and reset"):
        create(2, metrics=[metric])


@every_optimised_head
def test_a_criterion_that_reduces_is_refused(create):
    _, head, batch = create(4, criterion_fn=lambda: lambda output, truth: output.mean())
    with pytest.raises(ValueError, match=r"the criterion of 'truth'.*reduction='none'.*\(\)"):
        head.evaluate_batch(batch, True)
