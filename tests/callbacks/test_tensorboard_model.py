"""The model as TensorBoard and other programs read it."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from trw_pipeline.callbacks.tensorboard import (
    CallbackClearTensorboardLog,
    CallbackTensorboardRecordHistory,
    CallbackTensorboardRecordModel,
)
from trw_pipeline.errors import MissingExtraError
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.optimizers import create_sgd_optimizers_fn
from trw_pipeline.training.options import create_default_options


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
        self.last = nn.Linear(8, 2)

    def forward(self, batch):
        return {"y": OutputClassification(self.last(self.features(batch["image"]).flatten(1)), "truth")}


class Branches(Net):
    """Decides by the value of a tensor, which can not be traced."""

    def forward(self, batch):
        heads = super().forward(batch)
        return heads if batch["image"].sum() > 0 else super().forward({"image": -batch["image"]})


def split():
    image = torch.arange(48.0).reshape(3, 1, 4, 4)
    return [{"image": image, "truth": torch.tensor([0, 1, 0])}]


def fit(folder, *callbacks, model=None):
    lists = dict.fromkeys(("callbacks_per_epoch_fn", "callbacks_post_training_fn"))
    return Trainer(**lists, callbacks_pre_training_fn=lambda: callbacks).fit(
        create_default_options(folder, 1, "cpu"),
        lambda: {"d": {"train": split(), "valid": split()}},
        lambda options: model or Net(),
        lambda datasets, model: create_sgd_optimizers_fn(datasets, model, 0.0),
    )


def files(folder):
    found = (folder / "default_r0").rglob("*")
    return sorted(path.relative_to(folder / "default_r0").as_posix() for path in found if path.is_file())


@pytest.mark.slow
def test_the_graph_and_the_onnx_file_are_those_of_the_model(tmp_path):
    import onnxruntime
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model, _ = fit(tmp_path, CallbackTensorboardRecordModel())
    assert files(tmp_path) == ["onnx/model.onnx", "tensorboard/model/events.out.tfevents.model", "trainer.txt"]
    run = tmp_path / "default_r0"
    nodes = {node.name: node for node in EventAccumulator(str(run / "tensorboard" / "model")).Reload().Graph().node}
    by_op = {node.op: name for name, node in nodes.items()}
    convolution = nodes[by_op["aten.conv2d.default"]]
    assert convolution.name == "model/features/0/conv2d"
    assert set(convolution.input) == {"input/image", "model/features/0/weight", "model/features/0/bias"}
    shape = convolution.attr["_output_shapes"].list.shape[0]
    assert [one.size for one in shape.dim] == [-1, 2, 2, 2]
    assert list(nodes["output/y"].input) == [by_op["aten.linear.default"]]
    assert all(source in nodes for node in nodes.values() for source in node.input)
    session = onnxruntime.InferenceSession(run / "onnx" / "model.onnx")
    for image in (split()[0]["image"], torch.ones(7, 1, 4, 4)):
        (found,) = session.run(["y"], {"image": image.numpy()})
        np.testing.assert_allclose(found, model({"image": image})["y"].output.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_model_that_can_not_be_traced_is_warned_of_and_trained(tmp_path, caplog):
    _, result = fit(tmp_path, CallbackTensorboardRecordModel(), model=Branches())
    assert "the model can not be traced" in caplog.text
    assert files(tmp_path) == ["trainer.txt"]
    assert len(result["history"]) == 2


@pytest.mark.slow
def test_the_folder_of_onnx_can_be_chosen_or_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    fit(tmp_path, CallbackTensorboardRecordModel("d", "train", onnx_folder=None))
    assert files(tmp_path) == ["tensorboard/model/events.out.tfevents.model", "trainer.txt"]
    with pytest.raises(MissingExtraError, match=r"trw_pipeline\[onnx\]"):
        fit(tmp_path, CallbackTensorboardRecordModel("d", "train", "elsewhere"))


def test_without_tensorboard_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(MissingExtraError, match=r"trw_pipeline\[tensorboard\]"):
        fit(tmp_path, CallbackTensorboardRecordModel())


class Leaves(Callback):
    """Leaves a log in the run folder, as a training did that was there before."""

    def on_fit_start(self, run):
        (run.log_dir / "tensorboard").mkdir()
        (run.log_dir / "tensorboard" / "events.out.tfevents.old").write_bytes(b"old")


def test_a_log_that_was_there_is_deleted_before_a_new_one_is_begun(tmp_path):
    fit(tmp_path, Leaves(), CallbackClearTensorboardLog(), CallbackTensorboardRecordHistory())
    assert not any("old" in name for name in files(tmp_path))


def test_where_there_is_no_log_none_is_deleted(tmp_path):
    fit(tmp_path, CallbackClearTensorboardLog())
    assert files(tmp_path) == ["trainer.txt"]


def test_a_resumed_training_keeps_its_log(tmp_path):
    class Resumes(Leaves):
        def on_fit_start(self, run):
            super().on_fit_start(run)
            run.resumed = True

    fit(tmp_path, Resumes(), CallbackClearTensorboardLog())
    assert "tensorboard/events.out.tfevents.old" in files(tmp_path)
