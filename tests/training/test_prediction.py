"""A trained model on a split, with the truth and without."""

import numpy as np
import pytest
import torch
from toy_training import Net, batches, evaluate, samples

from trw_pipeline.outputs.output import Output
from trw_pipeline.trainer import Trainer


def numbered(nb_samples, batch_size):
    made = batches(nb_samples, batch_size)
    for number, batch in enumerate(made):
        first = number * batch_size
        batch["sample_uid"] = torch.arange(first, first + len(batch["x"]))
    return made


def test_predictions_are_those_of_the_model_in_evaluation_mode_sample_by_sample():
    model = Net(dropout=0.5)
    model.train()
    said = Trainer.predict(model, numbered(11, 4))
    model.eval()
    with torch.no_grad():
        raw = model.body(samples(11)["x"]).numpy()
    np.testing.assert_array_equal(said["y"]["output_raw"], raw)
    np.testing.assert_array_equal(said["y"]["output"], raw.argmax(1))
    np.testing.assert_array_equal(said["y"]["uid"], np.arange(11))
    assert list(said) == ["y"]


def test_no_truth_is_needed_and_the_model_is_left_in_its_mode():
    model = Net()
    model.train()
    model.body[0].eval()
    without = [{"x": batch["x"]} for batch in batches(4, 2)]
    said = Trainer.predict(model, without)
    assert set(said["y"]) == {"output_raw", "output"}
    assert (model.training, model.body[0].training, model.body[2].training) == (True, False, True)
    assert model.seen == [(False, False)] * 2


def test_a_head_without_postprocessing_gives_what_the_model_computed():
    class Plain(Output):
        def evaluate_batch(self, batch, is_training):
            return None

    class Model(torch.nn.Module):
        def forward(self, batch):
            return {"x": Plain(batch["x"] * 2, None)}

    said = Trainer.predict(Model(), batches(3, 2))
    assert set(said["x"]) == {"output_raw"}
    np.testing.assert_array_equal(said["x"]["output_raw"], (samples(3)["x"] * 2).numpy())


def test_an_empty_split_says_nothing(caplog):
    assert Trainer.predict(Net(), []) == {}
    assert "gave no batch" in caplog.text


def test_a_batch_without_samples_is_refused():
    with pytest.raises(ValueError, match="no samples"):
        Trainer.predict(Net(), [{"x": torch.zeros(0, 3)}])


def test_an_evaluation_is_that_of_the_training():
    model = Net()
    outputs, history = Trainer.evaluate(model, batches(11, 4))
    again, history_again = evaluate(model, batches(11, 4))
    assert history["y"] == history_again["y"]
    assert history["overall_loss"] == history_again["overall_loss"]
    np.testing.assert_array_equal(outputs["y"]["output_raw"], again["y"]["output_raw"])
