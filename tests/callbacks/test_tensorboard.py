"""What TensorBoard is given of a training."""

import pytest
from toy_trainer import fitting_in, trainer

from trw_pipeline.callbacks.tensorboard import CallbackTensorboardRecordHistory
from trw_pipeline.training.callback import Callback


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(folder / "default_r0" / "tensorboard")).Reload()
    return {tag: [(scalar.step, scalar.value) for scalar in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}


def test_it_shows_the_history_of_the_epochs(tmp_path):
    _, result = fitting_in(tmp_path)(trainer(CallbackTensorboardRecordHistory()), num_epochs=3)
    shown = scalars(tmp_path)
    for split in ("train", "valid"):
        losses = shown[f"d/{split}/overall_loss/loss"]
        expected = [epoch["d"][split]["overall_loss"]["loss"] for epoch in result["history"][:3]]
        assert losses == [(epoch, pytest.approx(loss)) for epoch, loss in enumerate(expected)]
    assert [step for step, _ in shown["learning_rate[d]"]] == [0, 1, 2]
    assert [step for step, _ in shown["time_s"]] == [0, 1, 2]


def test_an_epoch_that_ended_is_there_when_the_next_one_fails(tmp_path):
    """LOG-4."""

    class Fails(Callback):
        def on_split_end(self, run):
            if run.epoch == 1:
                raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fitting_in(tmp_path)(trainer(CallbackTensorboardRecordHistory(), Fails()))
    assert [step for step, _ in scalars(tmp_path)["time_s"]] == [0]
