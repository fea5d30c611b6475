"""How a split ends, and how it must not."""

import logging

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from toy_training import CPU, Constant, Net, batches, evaluate, model_of, stop_at, train

from trw_pipeline.training.loop import default_sum_all_losses, eval_loop


@pytest.mark.parametrize("loop", [train, evaluate])
@pytest.mark.parametrize("place", [0, 1])
def test_stop_iteration_of_a_callback_ends_the_split_and_its_batch_counts(loop, place):
    callbacks = [None, None]
    callbacks[place] = [stop_at(2)]
    _, history = loop(Net(), batches(10, 2), callbacks=callbacks)
    assert history["info"]["nb_samples"] == 4.0


def leaky_loss(dataset_name, batch, loss_terms):
    raise StopIteration


def leaky_head(batch):
    head = Constant(0.0)
    head.evaluate_batch = lambda batch, is_training: next(iter(()))
    return {"y": head}


def leaky_metric(batch):
    head = Constant(0.0)
    head.extract_history = lambda outputs: next(iter(()))
    return {"y": head}


def leaky_model(batch):
    return next(iter(()))


@pytest.mark.parametrize(
    ("heads", "loss"),
    [
        (leaky_model, default_sum_all_losses),
        (leaky_head, default_sum_all_losses),
        (leaky_metric, default_sum_all_losses),
        ({"y": Constant(0.0)}, leaky_loss),
    ],
    ids=["model", "head", "metric", "loss"],
)
def test_stop_iteration_of_anything_else_is_an_error_that_names_the_split(heads, loss):
    with pytest.raises(RuntimeError, match="d/valid") as caught:
        eval_loop(CPU, "d", "valid", batches(4, 2), model_of(heads), loss, None)
    assert isinstance(caught.value.__cause__, StopIteration)


def leaky_generator():
    yield from batches(2, 2)
    next(iter(()))


class LeakyIterable:
    def __iter__(self):
        raise StopIteration


@pytest.mark.parametrize("split", [leaky_generator(), LeakyIterable()])
def test_stop_iteration_out_of_the_data_is_an_error(split):
    with pytest.raises(RuntimeError) as caught:
        evaluate(Net(), split)
    assert isinstance(caught.value.__cause__, StopIteration)


class LeakyDataset(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 4:
            raise StopIteration
        return {"x": np.ones(3, np.float32), "truth": index % 2}


def test_a_split_shorter_than_its_length_is_an_error():
    with pytest.raises(RuntimeError, match="d/valid has a length of 3 batches and ended after 2"):
        evaluate(Net(), DataLoader(LeakyDataset(), batch_size=2))


class Short(list):
    def __len__(self):
        return 5


def test_a_split_may_be_shorter_by_the_failures_it_reports():
    split = Short(batches(4, 2))
    split.failures = ["a failed sample"]
    assert evaluate(Net(), split)[1]["info"]["nb_samples"] == 4.0


class Stream(IterableDataset):
    def __init__(self, nb_samples, length):
        self.nb_samples, self.length = nb_samples, length

    def __len__(self):
        return self.length

    def __iter__(self):
        return ({"x": np.ones(3, np.float32), "truth": 1} for _ in range(self.nb_samples))


def test_the_length_of_an_iterable_dataset_is_a_guess():
    assert evaluate(Net(), DataLoader(Stream(4, 10), batch_size=2))[1]["info"]["nb_samples"] == 4.0


@pytest.mark.parametrize("split", [[], iter(())])
def test_a_training_split_without_batches_is_an_error_that_names_it(split):
    """LOOP-5."""
    with pytest.raises(ValueError, match="training split d/train gave no batch"):
        train(Net(), split)


def test_an_evaluation_split_without_batches_has_no_metrics(caplog):
    """LOOP-5."""
    with caplog.at_level(logging.WARNING, logger="trw_pipeline"):
        outputs, history = evaluate(Net(), [])
    assert outputs == {}
    assert list(history) == ["info"]
    assert history["info"]["nb_samples"] == 0.0
    assert "d/valid gave no batch" in caplog.text


def test_a_batch_without_samples_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="batch 1 of d/valid has no samples"):
        evaluate(Net(), [*batches(2, 2), {"x": torch.ones(0, 3), "truth": torch.ones(0).long()}])


@pytest.mark.parametrize("batch", [[1, 2], (torch.ones(2, 3),), torch.ones(2, 3)])
def test_a_batch_that_is_no_mapping_is_an_error_that_names_the_split(batch):
    with pytest.raises(TypeError, match="a batch must be a mapping") as raised:
        evaluate(Net(), [batch])
    assert "batch 0 of d/valid" in raised.value.__notes__[0]


def test_a_model_that_returns_no_heads_is_an_error():
    with pytest.raises(TypeError, match="Tensor"):
        evaluate(model_of(lambda batch: torch.ones(2)), batches(2, 2))


def test_a_loss_with_dimensions_is_an_error_that_names_the_split():
    with pytest.raises(ValueError, match=r"d/valid.*\(2,\)"):
        eval_loop(CPU, "d", "valid", batches(2, 2), Net(), lambda *args: torch.ones(2), None)
