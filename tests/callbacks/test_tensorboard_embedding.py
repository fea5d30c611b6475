"""What the projector of TensorBoard is given, read by the projector itself."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from trw_pipeline.callbacks.tensorboard import CallbackTensorboardEmbedding, keep_small_features
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.embedding import OutputEmbedding
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.optimizers import create_sgd_optimizers_fn
from trw_pipeline.training.options import create_default_options

NB_SAMPLES = 10
INFOS = {"d": {"valid": {"output_mappings": {"truth": {"mappinginv": {0: "cat", 1: "dog\t<small>"}}}}}}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 2)
        self.seen = []

    def forward(self, batch):
        if not self.training:
            self.seen.append(len(batch["image"]))
        flat = batch["image"].flatten(1)
        return {
            "y": OutputClassification(self.inner(flat), "truth"),
            "where": OutputEmbedding(flat[:, :3].reshape(-1, 3, 1)),
        }


def samples():
    return {
        "image": torch.arange(NB_SAMPLES * 16.0).reshape(NB_SAMPLES, 1, 4, 4),
        "truth": torch.arange(NB_SAMPLES) % 2,
        "note": [f"sample {index}" for index in range(NB_SAMPLES)],
        "pair": torch.zeros(NB_SAMPLES, 2),
    }


def split():
    return SequenceArray(samples(), SamplerSequential()).batch(4).collate()


def fit(folder, callback, where="callbacks_post_training_fn", make_split=split, num_epochs=1):
    lists = dict.fromkeys(("callbacks_per_epoch_fn", "callbacks_pre_training_fn", "callbacks_post_training_fn"))
    model = Net()
    Trainer(**lists | {where: lambda: [callback]}).fit(
        create_default_options(folder, num_epochs, "cpu"),
        lambda: ({"d": {"train": make_split(), "valid": make_split()}}, INFOS),
        lambda options: model,
        lambda datasets, model: create_sgd_optimizers_fn(datasets, model, 0.0),
        with_final_evaluation=False,
    )
    return model


class Projector:
    """The plugin of TensorBoard, asked as a browser does."""

    def __init__(self, folder):
        from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
        from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
        from tensorboard.plugins.base_plugin import TBContext
        from tensorboard.plugins.projector.projector_plugin import ProjectorPlugin
        from werkzeug.test import Client

        multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder))
        multiplexer.Reload()
        provider = MultiplexerDataProvider(multiplexer, str(folder))
        apps = ProjectorPlugin(TBContext(logdir=str(folder), data_provider=provider)).get_plugin_apps()
        self._clients = {route: Client(app) for route, app in apps.items()}

    def ask(self, route, **query):
        answer = self._clients[route].get(query_string=query)
        assert answer.status_code == 200, answer.get_data()
        return answer.get_data()

    def runs(self):
        return json.loads(self.ask("/runs"))


RUN = "default_r0/tensorboard/embedding-where"


def test_the_projector_shows_vectors_and_what_is_known_of_the_samples(tmp_path):
    fit(tmp_path, CallbackTensorboardEmbedding("where"))
    projector = Projector(tmp_path)
    assert projector.runs() == [RUN]
    (embedding,) = json.loads(projector.ask("/info", run=RUN))["embeddings"]
    assert (embedding["tensorName"], embedding["tensorShape"]) == ("where", [NB_SAMPLES, 3])
    vectors = np.frombuffer(projector.ask("/tensor", run=RUN, name="where"), np.float32).reshape(NB_SAMPLES, 3)
    assert np.array_equal(vectors, samples()["image"].reshape(NB_SAMPLES, 16)[:, :3])
    header, *rows = [
        line.split("\t") for line in projector.ask("/metadata", run=RUN, name="where").decode().splitlines()
    ]
    assert sorted(header) == ["note", "sample_uid", "truth"]
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    assert columns["truth"] == ("cat", "dog <small>") * 5
    assert columns["note"] == tuple(samples()["note"])


def test_each_sample_has_its_picture(tmp_path):
    import io

    from PIL import Image

    fit(tmp_path, CallbackTensorboardEmbedding("where"))
    projector = Projector(tmp_path)
    (embedding,) = json.loads(projector.ask("/info", run=RUN))["embeddings"]
    assert embedding["sprite"]["singleImageDim"] == [4, 4]
    with Image.open(io.BytesIO(projector.ask("/sprite_image", run=RUN, name="where"))) as image:
        sprite = np.asarray(image)
    assert sprite.shape == (16, 16, 3)  # 4 x 4 places, of which 10 are taken
    expected = np.rint(np.arange(16) / 15 * 255).reshape(4, 4)
    for number in range(16):
        top, left = number // 4 * 4, number % 4 * 4
        place = sprite[top : top + 4, left : left + 4, 0]
        assert np.array_equal(place, expected if number < NB_SAMPLES else np.zeros((4, 4)))


@pytest.mark.parametrize(("most", "batches"), [(4, [4]), (6, [4, 4]), (8, [4, 4]), (99, [4, 4, 2])])
def test_no_more_samples_are_recorded_nor_batches_read_than_asked_for(tmp_path, most, batches):
    model = fit(tmp_path, CallbackTensorboardEmbedding("where", maximum_samples=most))
    assert model.seen == [4, 4, 2, *batches]  # of the epoch, and of the callback
    tensors = (tmp_path / RUN / "tensors.tsv").read_text().splitlines()
    assert len(tensors) == min(most, NB_SAMPLES)


def test_split_image_and_features_can_be_chosen(tmp_path):
    seen = []

    def keep(name, value):
        seen.append(name)
        return name == "note"

    fit(tmp_path, CallbackTensorboardEmbedding("y", "d", "train", "pair", 2, keep))
    folder = tmp_path / "default_r0" / "tensorboard" / "embedding-y"
    # A single column has no header, and a feature that is no image has no pictures.
    assert (folder / "metadata.tsv").read_text().splitlines() == ["sample 0", "sample 1"]
    assert not (folder / "sprite.png").exists()
    assert {"image", "truth", "note", "pair"} <= set(seen)
    assert not {"dataset_name", "split_name"} & set(seen)


def test_in_each_epoch_the_newest_takes_the_place_of_the_one_before(tmp_path):
    fit(tmp_path, CallbackTensorboardEmbedding("where"), "callbacks_per_epoch_fn", num_epochs=2)
    assert Projector(tmp_path).runs() == [RUN]


def test_pictures_of_different_sizes_are_left_out_with_a_warning(tmp_path, caplog):
    def uneven():
        return [
            {"image": torch.zeros(2, 1, 4, 4), "truth": torch.zeros(2, dtype=torch.long), "shot": torch.zeros(2, 3, 5)},
            {"image": torch.zeros(2, 1, 4, 4), "truth": torch.zeros(2, dtype=torch.long), "shot": torch.zeros(2, 5, 3)},
        ]

    fit(tmp_path, CallbackTensorboardEmbedding("where", image_name="shot"), make_split=uneven)
    assert "not all of one size" in caplog.text
    assert not (tmp_path / RUN / "sprite.png").exists()
    assert Projector(tmp_path).runs() == [RUN]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embedding_name": "nothing"}, r"no output 'nothing', it has \['where', 'y'\]"),
        ({"image_name": "nothing"}, "no feature 'nothing'"),
        ({"dataset_name": "nothing"}, "nothing"),
        ({"maximum_samples": 0}, "maximum_samples must be at least 1, got 0"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, CallbackTensorboardEmbedding(**{"embedding_name": "where"} | arguments))


def test_a_head_that_is_optional_may_be_absent(tmp_path):
    fit(tmp_path, CallbackTensorboardEmbedding("nothing", maybe_optional=True))
    assert not list(tmp_path.rglob("embedding-*"))


@pytest.mark.parametrize(
    ("value", "is_small"),
    [
        (torch.zeros(3), True),
        (np.zeros(3), True),
        (["a", "b"], True),
        ([torch.tensor(1.0)], True),
        (torch.zeros(3, 1), False),
        ([torch.zeros(2)], False),
        ([[1], [2, 3]], False),
        ([], False),
        ("text", False),
        (3, False),
    ],
)
def test_small_features_have_a_number_or_a_text_for_each_sample(value, is_small):
    assert keep_small_features("name", value) == is_small
