"""Models that look at one corner, and trainings whose decisions are explained."""

import torch
from torch import nn

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.segmentation import OutputSegmentation
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.options import create_default_options

torch.set_num_threads(1)
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def corner_of(image):
    """The first quarter along each axis."""
    return image[(..., *[slice(0, size // 4) for size in image.shape[2:]])]


class LooksAtACorner(nn.Module):
    """Says `bright` if the corner is, whatever the rest is like."""

    def __init__(self, nb_dims=2, nb_channels=1):
        super().__init__()
        self.convolution = CONVOLUTIONS[nb_dims](nb_channels, 2, 1)
        weight = torch.tensor([1.0, -1.0]).reshape(2, 1, *[1] * nb_dims).expand(2, nb_channels, *[1] * nb_dims)
        self.convolution.weight.data = weight / nb_channels
        self.convolution.bias.data.zero_()

    def forward(self, batch):
        features = self.convolution(batch["image"]).relu()
        means = corner_of(features).flatten(2).mean(2)
        score = 4 * means[:, 0] - 4 * means[:, 1] - 2
        return {
            "bright": OutputClassification(torch.stack([-score, score], 1), "is_bright"),
            "dark": OutputClassification(torch.stack([score, -score], 1), "is_dark"),
        }


def batch_of(nb_samples, size=(16, 16), nb_channels=1, bright=True):
    torch.manual_seed(0)
    image = 0.2 * torch.rand(nb_samples, nb_channels, *size)
    if bright:
        corner_of(image)[:] = 1.0
    return {
        "image": image,
        "is_bright": torch.full((nb_samples,), int(bright)),
        "is_dark": torch.full((nb_samples,), int(not bright)),
        "sample_uid": torch.arange(100, 100 + nb_samples),
    }


INFOS = {
    "d": {
        "valid": {
            "output_mappings": {
                "is_bright": {"mapping": {"gloomy": 0, "shiny": 1}, "mappinginv": {0: "gloomy", 1: "shiny"}}
            }
        }
    }
}


def explained(callback, folder, model, splits, infos=INFOS, where="callbacks_post_training_fn", per_batch=None):
    """Runs the callback in a training without epochs; gives the run folder."""
    lists = dict.fromkeys(("callbacks_per_epoch_fn", "callbacks_pre_training_fn", "callbacks_post_training_fn"))
    trainer = Trainer(
        **lists | {where: lambda: [callback]}, callbacks_per_batch_fn=None if per_batch is None else lambda: [per_batch]
    )
    options = create_default_options(folder, 1, "cpu")
    trainer.fit(options, lambda: ({"d": splits}, infos), lambda options: model, None)
    return folder / "default_r0"


class Segments(nn.Module):
    """Two layers; class 1 where the image is above one half."""

    def __init__(self, nb_dims=2):
        super().__init__()
        self.first = CONVOLUTIONS[nb_dims](1, 1, 1)
        self.last = CONVOLUTIONS[nb_dims](1, 2, 1)
        self.first.weight.data.fill_(1.0)
        self.last.weight.data = torch.tensor([-4.0, 4.0]).reshape(2, 1, *[1] * nb_dims)
        self.first.bias.data.zero_()
        self.last.bias.data = torch.tensor([2.0, -2.0])

    def forward(self, batch):
        return {"lesion": OutputSegmentation(self.last(self.first(batch["image"]).relu()), "mask")}
