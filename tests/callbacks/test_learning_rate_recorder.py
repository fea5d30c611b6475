import functools

import pytest
import torch
from PIL import Image
from toy_trainer import broken, fitting_in, sgd, trainer

from trw_pipeline.callbacks import learning_rate_recorder
from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.callbacks.learning_rate_recorder import CallbackLearningRateRecorder
from trw_pipeline.training.optimizers import create_sgd_optimizers_scheduler_step_lr_fn

halved = functools.partial(create_sgd_optimizers_scheduler_step_lr_fn, learning_rate=0.4, step_size=1, gamma=0.5)


@pytest.fixture
def plotted(monkeypatch):
    """What was plotted: (path, curves) of each picture."""
    plots = []

    def plot(path, curves, title, ylabel):
        plots.append((path, {name: list(points) for name, points in curves.items()}))

    monkeypatch.setattr(learning_rate_recorder, "plot_history", plot)
    return plots


def test_each_epoch_has_the_rate_it_was_trained_with(tmp_path, plotted):
    fitting_in(tmp_path)(trainer(CallbackLearningRateRecorder()), optimizers_fn=halved, num_epochs=3)
    path, curves = plotted[-1]
    assert path == tmp_path / "default_r0" / "lr_recorder" / "d.png"
    assert curves == {"learning rate": [(0, 0.4), (1, 0.2), (2, 0.1)]}


def test_optimizers_and_groups_of_a_dataset_have_a_curve_each_and_datasets_a_picture(tmp_path, plotted):
    def optimizers_fn(datasets, model):
        weight, bias = model.inner.parameters()
        groups = torch.optim.SGD([{"params": [weight], "lr": 0.1}, {"params": [bias], "lr": 0.2}])
        return {
            "d": {"a": sgd(datasets, model)[0]["d"], "b": groups},
            "e": torch.optim.SGD(model.parameters(), 0.3),
        }, None

    def inputs():
        x = [{"x": torch.eye(3), "truth": torch.tensor([0, 1, 0])}]
        return {"d": {"train": x}, "e": {"train": x}}

    fit = fitting_in(tmp_path)
    fit(trainer(CallbackLearningRateRecorder("rates")), inputs=inputs, optimizers_fn=optimizers_fn, num_epochs=1)
    found = {path.relative_to(tmp_path / "default_r0").as_posix(): curves for path, curves in plotted}
    assert found == {
        "rates/d.png": {"a": [(0, 0.1)], "b": [(0, 0.1)], "b/1": [(0, 0.2)]},
        "rates/e.png": {"learning rate": [(0, 0.3)]},
    }


def test_a_training_that_goes_on_has_each_epoch_once(tmp_path, plotted):
    def callbacks():
        return CallbackLearningRateRecorder(), CallbackCheckpoint()

    fit = fitting_in(tmp_path)
    with pytest.raises(OSError, match="disk full"):
        fit(trainer(*callbacks(), broken(OSError("disk full"), "on_epoch_start")), optimizers_fn=halved, num_epochs=4)
    fit(trainer(*callbacks()), optimizers_fn=halved, num_epochs=2)
    fit(trainer(*callbacks()), optimizers_fn=halved, num_epochs=4, resume=tmp_path / "default_r1")
    assert plotted[-1][0] == tmp_path / "default_r1" / "lr_recorder" / "d.png"
    assert plotted[-1][1] == {"learning rate": [(0, 0.4), (1, 0.2), (2, 0.1), (3, 0.05)]}


def test_a_training_that_fails_leaves_what_was_kept(tmp_path, plotted):
    class AtEpochOne(CallbackLearningRateRecorder):
        def on_epoch_start(self, run):
            super().on_epoch_start(run)
            if run.epoch == 1:
                raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fitting_in(tmp_path)(trainer(AtEpochOne()), optimizers_fn=halved)
    assert plotted[-1][1] == {"learning rate": [(0, 0.4)]}


def test_called_as_documented_it_takes_the_rates_of_the_moment(tmp_path, plotted):
    recorder = CallbackLearningRateRecorder()
    options = {"workflow_options": {"current_logging_directory": str(tmp_path)}}
    parameter = torch.nn.Parameter(torch.zeros(1))
    for epoch in range(2):
        optimizers = {"d": torch.optim.SGD([parameter], 0.1 * (epoch + 1))}
        history = [{}] * (epoch + 1)
        recorder(options, history, None, {}, {}, {}, {}, [], optimizers=optimizers, last_epoch=epoch == 1)
    assert [curves for _, curves in plotted] == [{"learning rate": [(0, 0.1), (1, 0.2)]}]


@pytest.mark.slow
def test_the_picture_is_a_picture(tmp_path):
    fitting_in(tmp_path)(trainer(CallbackLearningRateRecorder()), optimizers_fn=halved)
    with Image.open(tmp_path / "default_r0" / "lr_recorder" / "d.png") as image:
        image.load()
        assert image.format == "PNG"
