"""A small training of images, in which much is random."""

import csv
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trw_pipeline import binseg

# Several threads wait for each other longer than these tensors take.
torch.set_num_threads(1)

CPU = torch.device("cpu")
CRITERION = nn.BCEWithLogitsLoss()
OF_TIME = ("total_time", "eta")


class Images(Dataset):
    """Samples (name, image, target) of four pixels; augmented by the global generator of torch."""

    def __init__(self, nb_samples, seed=0, noise=0.0):
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.randn(nb_samples, 1, 2, 2, generator=generator)
        self.targets = (self.images + torch.randn(nb_samples, 1, 2, 2, generator=generator) > 0).float()
        self.noise = noise

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return f"image-{i}", self.images[i] + self.noise * torch.randn(1, 2, 2), self.targets[i]


def batches(nb_samples, batch_size=2, seed=0):
    return list(DataLoader(Images(nb_samples, seed), batch_size))


def new_model(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 1), nn.Dropout(dropout), nn.ReLU(), nn.Conv2d(4, 1, 1))


class Training:
    """A model with all that belongs to it, as a program makes them when it starts."""

    def __init__(self, folder, rate=0.5, dropout=0.0, nb_workers=0, checkpointer=None, noise=0.0, loader=None):
        self.folder = Path(folder)
        self.model = new_model(dropout)
        self.optimizer = torch.optim.Adam(self.model.parameters(), rate)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)
        self.checkpointer = binseg.Checkpointer(self.model, self.optimizer, self.scheduler, self.folder)
        if checkpointer is not None:
            self.checkpointer = checkpointer(self)
        self.loader = DataLoader(Images(7, 0, noise), 2, shuffle=True, num_workers=nb_workers)
        if loader is not None:
            self.loader = loader
        self.valid_loader = batches(5, seed=1)

    def run(self, max_epoch, go_on=True, valid=True, extras=(), period=1, chunks=2, interval=3600, **keywords):
        arguments = {"epoch": 0, **(self.checkpointer.load() if go_on else {}), "max_epoch": max_epoch}
        binseg.run(
            self.model,
            self.loader,
            self.valid_loader if valid else None,
            extras,
            self.optimizer,
            CRITERION,
            self.scheduler,
            self.checkpointer,
            period,
            CPU,
            arguments,
            self.folder,
            interval,
            chunks,
            **keywords,
        )
        return self


def log_of(folder, filename="trainlog.csv"):
    with (Path(folder) / filename).open(newline="") as file:
        return list(csv.DictReader(file))


def header_of(path):
    with path.open(newline="") as file:
        return next(csv.reader(file))


def without_times(rows):
    """Rows without what depends on the time and the machine."""
    return [
        {name: value for name, value in row.items() if name not in OF_TIME and not name.startswith(("cpu_", "gpu_"))}
        for row in rows
    ]


def saved(folder, name):
    return torch.load(Path(folder) / f"{name}.pth", weights_only=True)


def same_weights(one, other):
    states = [thing if isinstance(thing, dict) else thing.state_dict() for thing in (one, other)]
    return set(states[0]) == set(states[1]) and all(torch.equal(states[0][name], states[1][name]) for name in states[0])
