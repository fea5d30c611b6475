"""The figures of metrics over a split, cut into batches, by the same way as a training takes."""

import torch

from trw_pipeline.outputs.metrics import as_metrics
from trw_pipeline.outputs.output import Totals
from trw_pipeline.training.history import SplitMeter


def figures(metric, raw, truth, *, output=None, batch_size=None):
    """What a metric says of a split; by default the highest score is found, and there is one batch."""
    [metric] = as_metrics([metric])
    meter = SplitMeter()
    output = raw.argmax(1) if output is None else output
    for start in range(0, len(raw), batch_size or len(raw)):
        part = [whole[start : start + (batch_size or len(raw))] for whole in (raw, output, truth)]
        meter.add({"y": {"totals": Totals(metric.measure(*part))}}, 0.0, len(part[0]))
    return metric.figures(meter.read()[0]["y"]["totals"])


def scores_of(classes, nb_classes):
    """Scores that are highest for these classes: `(N, C, ...)` for classes `(N, ...)`."""
    return torch.nn.functional.one_hot(torch.as_tensor(classes), nb_classes).movedim(-1, 1).float()
