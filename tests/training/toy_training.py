"""A small model, small splits, and the two loops with what they always need."""

import torch
from torch import nn

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.output import Output
from trw_pipeline.training.loop import default_sum_all_losses, eval_loop, train_loop

# Several threads wait for each other longer than these tensors take.
torch.set_num_threads(1)

CPU = torch.device("cpu")


class Net(nn.Module):
    """Two classes from three numbers; notes the mode and the gradients of each call."""

    def __init__(self, nb_classes=2, dropout=0.0):
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(dropout), nn.Linear(3, nb_classes))
        self.seen = []

    def forward(self, batch):
        self.seen.append((self.training, torch.is_grad_enabled()))
        return {"y": OutputClassification(self.body(batch["x"]), "truth")}


def samples(nb_samples, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nb_samples, 3, generator=generator)
    return {"x": x, "truth": (x[:, 0] + 0.5 * torch.randn(nb_samples, generator=generator) > 0).long()}


def batches(nb_samples, batch_size, seed=0):
    whole = samples(nb_samples, seed)
    return [
        {name: value[start : start + batch_size] for name, value in whole.items()}
        for start in range(0, nb_samples, batch_size)
    ]


def sgd(model, rate=0.1):
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def train(model, split, optimizer=None, callbacks=(None, None), **keywords):
    optimizer = sgd(model) if optimizer is None else optimizer
    return train_loop(CPU, "d", "train", split, optimizer, model, default_sum_all_losses, [], *callbacks, **keywords)


def evaluate(model, split, callbacks=(None, None), **keywords):
    return eval_loop(CPU, "d", "valid", split, model, default_sum_all_losses, [], *callbacks, **keywords)


class Constant(Output):
    def __init__(self, loss):
        super().__init__(torch.zeros(1), None)
        self.loss = loss

    def evaluate_batch(self, batch, is_training):
        return {"loss": self.loss} if self.loss is not None else {"note": "no loss"}

    def extract_history(self, outputs):
        return {"loss": outputs["loss"]} if "loss" in outputs else {}


def model_of(heads):
    class Fixed(nn.Module):
        def forward(self, batch):
            return heads(batch) if callable(heads) else heads

    return Fixed()


def stop_at(nb_calls):
    calls = []

    def stop(*args):
        calls.append(args)
        if len(calls) == nb_calls:
            raise StopIteration

    return stop
