"""The model is told of once, to the logger and to a file."""

import pytest
import torch
from toy_trainer import Net, batches, fitting_in, trainer

from trw_pipeline.callbacks.model_summary import CallbackModelSummary


def test_logger_and_file_have_the_layers_and_the_numbers_of_the_model(tmp_path):
    told = []
    fitting_in(tmp_path)(trainer(pre=[CallbackModelSummary(told.append)]))
    (text,) = told
    assert (tmp_path / "default_r0" / "model_summary.txt").read_text() == f"{text}\n"
    assert any(line.split()[:2] == ["inner", "Linear"] for line in text.splitlines())


def test_without_a_logger_it_is_in_the_log_of_the_run(tmp_path, caplog):
    caplog.set_level("INFO")
    fitting_in(tmp_path)(trainer(pre=[CallbackModelSummary()]))
    assert "FLOPs of this batch" in (tmp_path / "default_r0" / "trainer.txt").read_text()


def test_a_split_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="'absent'"):
        fitting_in(tmp_path)(trainer(pre=[CallbackModelSummary(split_name="absent")]))


def test_a_split_without_batches_ends_no_training(tmp_path, caplog):
    def inputs():
        return {"d": {"train": batches(4), "valid": []}}

    fitting_in(tmp_path)(trainer(pre=[CallbackModelSummary()]), inputs=inputs)
    assert "d/valid has no batch to look at" in caplog.text
    assert not (tmp_path / "default_r0" / "model_summary.txt").exists()


def test_a_model_that_draws_is_trained_as_if_nobody_had_looked(tmp_path):
    class Draws(Net):
        def forward(self, batch):
            return super().forward({**batch, "x": batch["x"] + torch.rand(3)})

    weights = []
    for callbacks in ([CallbackModelSummary()], []):
        torch.manual_seed(3)
        model, _ = fitting_in(tmp_path)(trainer(pre=callbacks), model_fn=lambda options: Draws())
        weights.append(model.inner.weight)
    assert torch.equal(*weights)


def test_the_model_is_trained_as_if_nobody_had_looked(tmp_path):
    weights = []
    for callback in (CallbackModelSummary(), CallbackModelSummary(split_name="train"), None):
        torch.manual_seed(3)
        model, _ = fitting_in(tmp_path)(trainer(pre=[callback] if callback else []))
        weights.append(model.inner.weight.detach().clone())
    assert torch.equal(weights[0], weights[2])
    assert torch.equal(weights[1], weights[2])
