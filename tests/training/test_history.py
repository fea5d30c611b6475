import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trw_pipeline.outputs.output import Output, Rows, Totals, Update
from trw_pipeline.training.history import SplitMeter, split_info


class Head(Output):
    """Says in the history whatever it is told to."""

    def __init__(self, figures=None):
        super().__init__(torch.zeros(1), None)
        self.figures = figures or {}

    def evaluate_batch(self, batch, is_training):
        raise NotImplementedError

    def extract_history(self, outputs):
        return self.figures


def read(*batches, loss=0.0):
    """Meter (term, number of samples) pairs of one output, and give its loss term over the split."""
    meter = SplitMeter()
    for term, nb_samples in batches:
        meter.add({"y": term}, loss, nb_samples)
    return meter.read()[0]["y"]


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@pytest.mark.slow
@given(sizes, st.randoms(use_true_random=False))
def test_means_are_over_samples_whatever_the_batches(sizes, random):
    samples = [[random.uniform(-3, 3) for _ in range(size)] for size in sizes]
    term = read(*(({"loss": torch.tensor(sum(batch) / len(batch))}, len(batch)) for batch in samples))
    everything = [value for batch in samples for value in batch]
    assert term["loss"] == pytest.approx(sum(everything) / len(everything), abs=1e-6)


@given(sizes)
def test_rows_are_concatenated_whatever_the_batches(sizes):
    everything = torch.arange(2 * sum(sizes)).reshape(-1, 2)
    term = read(*(({"rows": rows}, len(rows)) for rows in everything.split(sizes)))
    assert isinstance(term["rows"], np.ndarray)
    assert term["rows"].tolist() == everything.tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_numbers_in_tensors_are_averaged_with_the_digits_of_float64(dtype):
    """float32 on the CPU is added up on the host, bfloat16 and whatever is on a device where it is."""
    one, tiny = torch.tensor(1.0, dtype=dtype), torch.tensor(2.0**-40, dtype=dtype, requires_grad=True)
    term = read(({"loss": one}, 1), *[({"loss": tiny}, 2)] * 3)
    assert term["loss"] == (1 + 6 * 2.0**-40) / 7


def test_numbers_are_averaged_by_sample():
    assert read(({"loss": 1.0}, 4), ({"loss": 0.0}, 1))["loss"] == pytest.approx(0.8)


def test_a_value_may_be_a_number_in_one_batch_and_a_tensor_in_another():
    assert read(({"loss": 1.0}, 1), ({"loss": torch.tensor(4.0)}, 2))["loss"] == pytest.approx(3.0)


def test_an_output_is_averaged_over_the_batches_it_judged():
    meter = SplitMeter()
    meter.add({"y": {"loss": torch.tensor(1.0)}}, 1.0, 2)
    meter.add({}, 0.0, 6)
    outputs, history = meter.read()
    assert outputs["y"]["loss"] == 1.0
    assert history["overall_loss"]["loss"] == 0.25


def test_a_long_split_loses_no_digits():
    small, nb_batches = 1e-3, 3000
    first = ({"loss": torch.tensor(1e6)}, 1)
    term = read(first, *[({"loss": torch.tensor(small)}, 1)] * nb_batches)
    assert term["loss"] == pytest.approx((1e6 + nb_batches * small) / (nb_batches + 1), rel=1e-10)


def test_totals_are_added_key_by_key():
    term = read(
        ({"counts": Totals(n=3, wrong=torch.tensor(2), by_class=torch.tensor([1, 2]))}, 3),
        ({"counts": Totals(n=1, wrong=torch.tensor(1), by_class=torch.tensor([0, 1]), late=torch.tensor(7))}, 1),
    )
    counts = term["counts"]
    assert (counts["n"], int(counts["wrong"]), int(counts["late"])) == (4, 3, 7)
    assert counts["by_class"].tolist() == [1, 3]


def test_the_totals_of_a_batch_are_not_changed():
    counts = Totals(wrong=torch.tensor(2))
    read(({"counts": counts}, 1), ({"counts": counts}, 1))
    assert counts == {"wrong": torch.tensor(2)}


def test_lists_are_chained_and_arrays_concatenated():
    term = read(
        ({"uid": ["a", "b"], "rows": np.array([1, 2])}, 2),
        ({"uid": ["c"], "rows": np.array([3])}, 1),
    )
    assert term["uid"] == ["a", "b", "c"]
    assert term["rows"].tolist() == [1, 2, 3]


def test_of_anything_else_the_first_is_kept():
    first, second = object(), object()
    assert read(({"what": first}, 1), ({"what": second}, 1))["what"] is first


def test_rows_are_copied_so_a_reused_batch_does_no_harm():
    reused = torch.tensor([1, 2])
    meter = SplitMeter()
    meter.add({"y": {"rows": reused}}, 0.0, 2)
    reused.fill_(9)
    assert meter.read()[0]["y"]["rows"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "second", [torch.zeros(2, 4), torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.int64)]
)
def test_rows_that_do_not_fit_are_refused_with_name_and_shapes(second):
    with pytest.raises(ValueError, match=r"'y'/'rows'.*\(3,\) torch.float32.*collect_output=False"):
        read(({"rows": torch.zeros(2, 3)}, 2), ({"rows": second}, 2))


def test_bfloat16_rows_arrive_as_the_same_numbers():
    assert read(({"rows": torch.tensor([0.5, 3.0], dtype=torch.bfloat16)}, 2))["rows"].tolist() == [0.5, 3.0]


@pytest.mark.parametrize("name", ["overall_loss", "info", "resources"])
def test_reserved_names_are_refused(name):
    with pytest.raises(ValueError, match=name):
        SplitMeter().add({name: {}}, 0.0, 1)


def test_no_batch_no_figures():
    assert SplitMeter().read() == ({}, {})


def test_the_overall_loss_is_in_outputs_and_history():
    meter = SplitMeter()
    meter.add({}, torch.tensor(2.0), 3)
    meter.add({}, torch.tensor(6.0), 1)
    assert meter.read() == ({"overall_loss": {"loss": 3.0}}, {"overall_loss": {"loss": 3.0}})


def history_of(figures):
    meter = SplitMeter()
    meter.add({"y": {"output_ref": Head(figures)}}, 0.0, 1)
    return meter.read()[1]


def test_totals_are_added_concatenated_or_given_to_one_metric():
    class Longest:
        def reset(self):
            self.nb_letters = 0

        def update(self, words):
            self.nb_letters = max(self.nb_letters, *(len(word) for word in words))

        def compute(self):
            return torch.tensor(self.nb_letters)

    meter = SplitMeter()
    for words, counts in ((["a", "bcd"], [1, 2]), (["ef"], [5])):
        counts = torch.tensor(counts)
        update = Update(Longest(), (words,))
        totals = Totals(sum=counts.sum(), number=len(words), rows=Rows(counts), longest=update)
        meter.add({"y": {"totals": totals}}, 0.0, len(words))
    totals = meter.read()[0]["y"]["totals"]
    assert totals.pop("rows").tolist() == [1, 2, 5]
    assert {name: int(value) for name, value in totals.items()} == {"sum": 8, "number": 3, "longest": 3}


def test_what_is_fleeting_is_not_gathered():
    class Head(Output):
        fleeting = ("rows",)

        def evaluate_batch(self, batch, is_training):
            return {"rows": self.output, "kept": self.output, Output.output_ref_tag: self}

    meter = SplitMeter()
    for size in (2, 1):
        meter.add({"y": Head(torch.zeros(size), None).evaluate_batch({}, True)}, 0.0, size)
    assert set(meter.read()[0]["y"]) == {"kept", "output_ref"}


def test_metrics_become_plain_floats():
    history = history_of({"a": np.float64(0.5), "b": torch.tensor(0.25), "c": 1, "d": np.int64(2), "e": np.array(3.0)})
    assert history["y"] == {"a": 0.5, "b": 0.25, "c": 1.0, "d": 2.0, "e": 3.0}
    assert {type(value) for value in history["y"].values()} == {float}


@pytest.mark.parametrize("value", ["0.5", None, np.zeros(2), torch.zeros(1)])
def test_a_metric_that_is_no_number_is_refused_with_its_name(value):
    with pytest.raises(TypeError, match="'recall' of 'y'"):
        history_of({"recall": value})


def test_a_head_without_figures_is_not_in_the_history():
    assert list(history_of({})) == ["overall_loss"]


def live_tensors():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def add_batch(meter):
    """Meter a batch whose values have a graph, and give a weak reference to the leaf that the graph keeps alive."""
    leaf = torch.ones(4, 2, requires_grad=True)
    losses = (leaf * 2).sum(1)
    term = {"loss": losses.mean(), "rows": losses, "counts": Totals(n=losses.sum())}
    meter.add({"y": term}, losses.mean(), 4)
    return weakref.ref(leaf)


@pytest.mark.slow
def test_the_number_of_live_tensors_does_not_grow_with_the_batches():
    meter = SplitMeter()
    counts = {}
    for batch in range(1, 501):
        add_batch(meter)
        if batch in (50, 500):
            counts[batch] = live_tensors()
    assert counts[50] == counts[500]


@pytest.mark.slow
def test_nothing_gathered_keeps_a_graph():
    meter = SplitMeter()
    leaf = add_batch(meter)
    gc.collect()
    assert leaf() is None


def test_info_by_hand():
    assert split_info(nb_samples=30, time_s=4.0, wait_s=1.0) == {
        "nb_samples": 30.0,
        "time_s": 4.0,
        "samples_per_s": 7.5,
        "wait_s": 1.0,
        "wait_share": 0.25,
    }


def test_info_of_no_time_at_all():
    assert split_info(0, 0.0, 0.0) == dict.fromkeys(
        ("nb_samples", "time_s", "samples_per_s", "wait_s", "wait_share"), 0.0
    )
