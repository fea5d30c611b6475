import numpy as np
import pytest
import torch
from torch import nn

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.record import OutputRecord
from trw_pipeline.outputs.regression import OutputRegression
from trw_pipeline.training.loop import default_sum_all_losses, eval_loop


def split_of(values, nb_first=3):
    x = torch.arange(len(values), dtype=torch.float32)
    truth = (x > 1).long()
    return [
        {"x": x[part], "truth": truth[part], "value": values[part]}
        for part in (slice(0, nb_first), slice(nb_first, None))
    ]


class Net(nn.Module):
    def forward(self, batch):
        x = batch["x"]
        return {
            "class": OutputClassification(torch.stack([x, 2 * x], 1), "truth"),
            "number": OutputRegression(2 * x, "x"),
            "record": OutputRecord(batch["value"]),
        }


@pytest.mark.parametrize(
    "values",
    [["a", "b", "c", "d", "e"], torch.arange(10).reshape(5, 2), np.arange(5), [None, (1, 2), {}, "x", 3]],
    ids=["strings", "tensor", "array", "objects"],
)
def test_values_of_any_kind_are_kept_beside_heads_that_are_optimised(values):
    """T13: the history has a path for each head, and the overall loss is their sum."""
    outputs, history = eval_loop(torch.device("cpu"), "d", "s", split_of(values), Net(), default_sum_all_losses, [])
    kept = outputs["record"]["output"]
    assert kept == values if isinstance(values, list) else (kept == np.asarray(values)).all()
    assert outputs["record"]["losses"].tolist() == [0.0] * 5
    assert outputs["record"]["loss"] == 0.0
    assert set(history) == {"class", "number", "overall_loss", "info"}
    total = history["class"]["loss"] + history["number"]["loss"]
    assert history["overall_loss"]["loss"] == pytest.approx(total, abs=1e-6)


def test_without_other_heads_nothing_is_optimised():
    term = OutputRecord(["a", "b"]).evaluate_batch({"x": torch.zeros(2)}, True)
    assert default_sum_all_losses("d", {}, {"record": term}) == 0.0


@pytest.mark.parametrize(
    ("values", "found"), [(["a"], "1 values"), (torch.zeros(()), "Tensor"), ("abc", "str"), ({"a": [1, 2, 3]}, "dict")]
)
def test_anything_but_a_value_for_each_sample_is_refused(values, found):
    with pytest.raises(ValueError, match=f"of 3 values, one a sample, got {found}"):
        OutputRecord(values).evaluate_batch({"x": torch.zeros(3)}, False)
