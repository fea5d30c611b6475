"""A training whose every part takes planned seconds, of a clock that nothing else moves and of a pretended device."""

import csv

import torch
from torch import nn
from toy_trainer import fitting_in, trainer

from trw_pipeline.callbacks import monitor
from trw_pipeline.outputs.output import Output, Totals, Update


class Clock:
    """Seconds that pass where a part of the training says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Gpu:
    """Stands in for a `GpuTimer`: a device that works in order, beside the host, and counts who waits for it."""

    def __init__(self, clock, name="Fake"):
        self.clock, self.name = clock, name
        self.busy_until = 0.0
        self.peak_mb = 0.0
        self.nb_waits = 0

    def work(self, seconds):
        self.busy_until = max(self.clock.now, self.busy_until) + seconds

    def mark(self):
        return Mark(self, max(self.clock.now, self.busy_until))

    def wait(self):
        self.nb_waits += 1
        self.clock.now = max(self.clock.now, self.busy_until)

    def take_peak_mb(self):
        peak_mb, self.peak_mb = self.peak_mb, 0.0
        return peak_mb


class Mark:
    """A moment in the work of the device; like torch's, it counts in milliseconds."""

    def __init__(self, gpu, at):
        self.gpu, self.at = gpu, at

    def query(self):
        return self.gpu.clock.now >= self.at

    def synchronize(self):
        if not self.query():
            self.gpu.nb_waits += 1
            self.gpu.clock.now = self.at

    def elapsed_time(self, end):
        assert self.query(), "asked before the device has passed it"
        assert end.query(), "asked before the device has passed it"
        return 1000 * (end.at - self.at)


class Costs:
    """How long each part takes, in seconds of the host and of the device; a part that is not named takes none.

    Parts: data, forward, backward, step, valid data, evaluation, metric, and end: finding out that a split is over.
    """

    def __init__(self, host=None, device=None, peaks_mb=None, gpu=False):
        self.clock = Clock()
        self.gpu = Gpu(self.clock) if gpu else None
        self.host, self.device, self.peaks_mb = host or {}, device or {}, peaks_mb or {}

    def spend(self, part):
        self.clock.now += self.host.get(part, 0.0)
        if self.gpu is not None:
            self.gpu.work(self.device.get(part, 0.0))
            self.gpu.peak_mb = max(self.gpu.peak_mb, self.peaks_mb.get(part, 0.0))

    def __deepcopy__(self, memo):
        return self


class SpendBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, costs):
        ctx.costs = costs
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.costs.spend("backward")
        return gradient, None


class SlowMetric:
    def __init__(self, costs):
        self.costs = costs

    def update(self, values):
        self.costs.spend("metric")

    def compute(self):
        return 0.0

    def reset(self):
        pass


class Head(Output):
    """A loss, and a metric where it evaluates."""

    def __init__(self, output, costs):
        super().__init__(output, None)
        self.costs = costs

    def evaluate_batch(self, batch, is_training):
        self.costs.spend("forward" if is_training else "evaluation")
        term = self._term(batch, loss=SpendBackward.apply(self.output.mean(), self.costs))
        if not is_training:
            term["figures"] = Totals(metric=Update(SlowMetric(self.costs), (self.output.detach(),)))
        return term

    def extract_history(self, outputs):
        if self.costs.gpu is not None:  # what is read at the end of a split has been waited for
            self.costs.clock.now = max(self.costs.clock.now, self.costs.gpu.busy_until)
        return {}


class SlowModel(nn.Module):
    def __init__(self, costs):
        super().__init__()
        self.costs = costs
        self.inner = nn.Linear(1, 1)

    def forward(self, batch):
        return {"y": Head(self.inner(batch["x"]), self.costs)}


class SlowSgd(torch.optim.SGD):
    def __init__(self, costs, parameters):
        super().__init__(parameters, lr=0.0)
        self.costs = costs

    def step(self, closure=None):
        self.costs.spend("step")
        return super().step(closure)


class SlowSplit:
    """Batches of 2, the last one shorter where it does not come out even; goes on where its state says."""

    def __init__(self, costs, nb_samples, part="data"):
        self.costs, self.nb_samples, self.part = costs, nb_samples, part
        self.position = 0

    def __len__(self):
        return -(-self.nb_samples // 2)

    def __iter__(self):
        while self.position < self.nb_samples:
            self.costs.spend(self.part)
            size = min(2, self.nb_samples - self.position)
            self.position += size
            yield {"x": torch.zeros(size, 1)}
        self.position = 0
        self.costs.spend("end")

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def fit(folder, costs, *callbacks, nb_train=6, nb_valid=4, splits=None, **arguments):
    """Trains, by default two epochs without a final evaluation, and returns the run folder."""
    splits = splits or {"train": SlowSplit(costs, nb_train), "valid": SlowSplit(costs, nb_valid, "valid data")}
    fitting_in(folder)(
        trainer(*callbacks),
        inputs=lambda: {"d": splits},
        model_fn=lambda options: SlowModel(costs),
        optimizers_fn=lambda datasets, model: ({"d": SlowSgd(costs, model.parameters())}, None),
        clock=costs.clock,
        **{"with_final_evaluation": False, **arguments},
    )
    return folder / "default_r0"


def with_gpu(monkeypatch, costs):
    """Lets every monitor take the device of these costs for one of CUDA."""
    monkeypatch.setattr(monitor, "gpu_timer", lambda device: costs.gpu)
    return costs


def table_of(run_folder):
    """Column -> its values, of which only the last may be missing; an empty cell between others is None."""
    with (run_folder / "logs" / "computational.tsv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", strict=True))
    table = {}
    for column in rows[0]:
        values = [float(row[column]) if row[column] else None for row in rows]
        while values and values[-1] is None:
            values.pop()
        table[column] = values
    return table
