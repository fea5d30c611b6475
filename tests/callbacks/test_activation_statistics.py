import pytest
import torch
from torch import nn
from toy_trainer import Net, batches, fitting_in, trainer

from trw_pipeline.callbacks.activation_statistics import CallbackActivationStatistics


def rows(text):
    """Layer -> its cells behind the type."""
    return {words[0]: words[2:] for line in text.splitlines() if len(words := line.split()) > 5}


def test_after_each_epoch_it_tells_what_the_layers_make_of_a_batch(tmp_path):
    class Dead(Net):
        """Its second layer gives zeros alone."""

        def __init__(self):
            super().__init__()
            self.dead = nn.Sequential(nn.Threshold(1e9, 0.0))

        def forward(self, batch):
            self.dead(batch["x"])
            return super().forward(batch)

    told = []
    fitting_in(tmp_path)(trainer(CallbackActivationStatistics(logger_fn=told.append)), model_fn=lambda options: Dead())
    assert [text.splitlines()[0] for text in told] == [
        f"activations after epoch {epoch}, a batch of d/train" for epoch in (0, 1)
    ]
    for text in told:
        assert rows(text)["dead.0"] == ["0", "0", "0", "0", "100.0", "%", "0.0", "%"]
        assert rows(text)["inner"][-2:] == ["0.0", "%"]


def test_the_figures_are_those_of_the_weights_after_the_epoch_and_of_the_first_batch(tmp_path):
    told = []
    model, _ = fitting_in(tmp_path)(
        trainer(CallbackActivationStatistics(split_name="valid", logger_fn=told.append)), num_epochs=1
    )
    values = model.inner(batches(4)[0]["x"]).detach().double()
    expected = [values.mean(), values.std(correction=0), values.min(), values.max()]
    assert rows(told[0])["inner"][:4] == [f"{float(value):.3g}" for value in expected]


def test_a_split_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="'absent'"):
        fitting_in(tmp_path)(trainer(CallbackActivationStatistics(split_name="absent")))


def test_a_model_that_drops_values_trains_on_as_if_nobody_had_looked(tmp_path):
    class Drops(Net):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, batch):
            return super().forward({**batch, "x": self.drop(batch["x"])})

    weights = []
    for callbacks in ([CallbackActivationStatistics()], []):
        torch.manual_seed(0)
        model, _ = fitting_in(tmp_path)(trainer(*callbacks), model_fn=lambda options: Drops())
        weights.append(model.inner.weight)
    assert torch.equal(*weights)
