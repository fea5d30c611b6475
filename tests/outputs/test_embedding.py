import pytest
import torch
from torch import nn

from trw_pipeline.outputs.embedding import OutputEmbedding
from trw_pipeline.training.loop import default_sum_all_losses, eval_loop

X = torch.arange(10.0).reshape(5, 2)
SPLIT = [{"x": X[:3], "sample_uid": torch.tensor([3, 1, 2])}, {"x": X[3:], "sample_uid": torch.tensor([9, 7])}]


class Net(nn.Module):
    def __init__(self, **arguments):
        super().__init__()
        self.arguments = arguments

    def forward(self, batch):
        return {"e": OutputEmbedding(2 * batch["x"], **self.arguments)}


def run(**arguments):
    """The outputs and the history of the head over the split, and what each batch's callback saw."""
    seen = []
    outputs, history = eval_loop(
        torch.device("cpu"),
        "d",
        "valid",
        SPLIT,
        Net(**arguments),
        default_sum_all_losses,
        [],
        None,
        [lambda dataset, split, batch, terms: seen.append(terms["e"]["output"].tolist())],
    )
    return outputs["e"], history, seen


def test_embeddings_are_kept_with_the_uids_of_their_samples():
    outputs, history, _ = run()
    assert outputs["output"].tolist() == (2 * X).tolist()
    assert outputs["uid"].tolist() == [3, 1, 2, 9, 7]
    assert "loss" not in outputs
    assert "e" not in history
    assert history["overall_loss"] == {"loss": 0.0}


@pytest.mark.parametrize("clean", [True, False])
def test_where_they_end_with_their_batch_its_callbacks_see_them_all_the_same(clean):
    outputs, _, seen = run(clean_loss_term_each_batch=clean)
    assert seen == [(2 * X[:3]).tolist(), (2 * X[3:]).tolist()]
    assert ("output" in outputs) is not clean
    assert outputs["uid"].tolist() == [3, 1, 2, 9, 7]


def test_cleaning_removes_it_from_the_term():
    head = OutputEmbedding(X, clean_loss_term_each_batch=True)
    term = head.evaluate_batch({"x": X}, True)
    head.loss_term_cleanup(term)
    assert "output" not in term


def test_uids_may_be_left_out():
    assert "uid" not in run(sample_uid_name=None)[0]
