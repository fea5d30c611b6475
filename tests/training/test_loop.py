import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from toy_training import CPU, Constant, Net, batches, evaluate, model_of, stop_at, train

from trw_pipeline.training.callback import Callback, create_hook_table
from trw_pipeline.training.run import Run

# Hooks


class Trace(Callback):
    def __init__(self):
        self.calls = []


def _note(hook):
    def method(self, run):
        self.calls.append(hook.removeprefix("on_"))

    return method


for _hook in create_hook_table():
    setattr(Trace, _hook, _note(_hook))

TRAIN_BATCH = ["batch_start", "forward_start", "loss", "backward_end", "step_start", "step_end", "batch_end"]
EVAL_BATCH = ["batch_start", "forward_start", "loss", "batch_end"]


def test_the_hooks_of_three_training_batches_and_two_evaluation_batches():
    """T43."""
    trace = Trace()
    model = Net()
    run = Run(model, CPU, hooks=create_hook_table(per_epoch=[trace]))
    train(model, batches(6, 2), run=run)
    evaluate(model, batches(4, 2), run=run)
    assert trace.calls == [
        "split_start",
        *TRAIN_BATCH * 3,
        "split_end",
        "split_start",
        *EVAL_BATCH * 2,
        "split_end",
    ]


def test_what_the_hooks_see():
    seen = []

    class Look(Callback):
        def on_batch_start(self, run):
            seen.append(("arrived", run.batch_index, run.num_batches, isinstance(run.batch["x"], np.ndarray)))

        def on_forward_start(self, run):
            seen.append(("placed", isinstance(run.batch["x"], torch.Tensor), run.training))

        def on_loss(self, run):
            seen.append(("loss", list(run.terms), run.loss.requires_grad))

        def on_step_start(self, run):
            seen.append(("gradients", run.nb_micro_batches, run.model.body[2].weight.grad is not None))

        def on_step_end(self, run):
            seen.append(("stepped", run.nb_micro_batches, run.nb_steps, run.nb_samples))

        def on_split_end(self, run):
            seen.append(("over", run.history[-1]["d"]["train"]["info"]["nb_samples"], list(run.outputs["d"]["train"])))

    model = Net()
    run = Run(model, CPU, hooks=create_hook_table(per_epoch=[Look()]), history=[{}], outputs={})
    data = [{"x": batch["x"].numpy(), "truth": batch["truth"].numpy()} for batch in batches(5, 5)]
    train(model, data, run=run)
    assert seen == [
        ("arrived", 0, 1, True),
        ("placed", True, True),
        ("loss", ["y"], True),
        ("gradients", 1, True),
        ("stepped", 0, 1, 5),
        ("over", 5.0, ["y", "overall_loss"]),
    ]


def test_callbacks_of_batches_leave_the_run_with_their_split():
    run = Run(Net(), CPU)
    hooks = run.hooks
    evaluate(run.model, batches(2, 2), ([lambda *args: None], None), run=run)
    assert run.hooks is hooks


def test_a_split_may_be_evaluated_with_another_model_than_that_of_the_run():
    run = Run(Net(), CPU)
    of_the_run, other = run.model, Net()
    evaluate(other, batches(2, 2), run=run)
    assert (len(of_the_run.seen), len(other.seen)) == (0, 1)
    assert run.model is of_the_run


def test_a_hook_may_end_the_split():
    class Second(Callback):
        def on_batch_end(self, run):
            run.split_stopped = run.batch_index == 1

    run = Run(Net(), CPU, hooks=create_hook_table(per_epoch=[Second()]))
    assert evaluate(run.model, batches(10, 2), run=run)[1]["info"]["nb_samples"] == 4.0


# Iterators


class Closeable:
    """An iterator of batches that notes its close."""

    def __init__(self, data):
        self.data = iter(data)
        self.nb_closes = 0

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.data)

    def close(self):
        self.nb_closes += 1


class Opened:
    """A split whose iterators are `Closeable`."""

    def __init__(self, data):
        self.data = data
        self.opened = []

    def __iter__(self):
        self.opened.append(Closeable(self.data))
        return self.opened[-1]


def test_the_iterator_that_the_loop_opened_is_closed():
    split = Opened(batches(4, 2))
    evaluate(Net(), split)
    assert [iterator.nb_closes for iterator in split.opened] == [1]


def test_it_is_closed_when_the_split_is_stopped_or_fails():
    split = Opened(batches(4, 2))
    evaluate(Net(), split, ([stop_at(1)], None))
    with pytest.raises(TypeError):
        evaluate(model_of(3), split)
    assert [iterator.nb_closes for iterator in split.opened] == [1, 1]


def test_an_iterator_that_somebody_else_opened_is_not_closed():
    split = Closeable(batches(4, 2))
    evaluate(Net(), split)
    assert split.nb_closes == 0


# Times


class Clock:
    """Stands still unless it is moved."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class SlowData:
    """Takes 2 s to open and 3 s for each batch and for finding out that there is no more."""

    def __init__(self, clock, data):
        self.clock, self.data = clock, data

    def __iter__(self):
        self.clock.now += 2.0
        return self._batches()

    def _batches(self):
        for batch in self.data:
            self.clock.now += 3.0
            yield batch
        self.clock.now += 3.0


def test_times_of_a_split_by_hand():
    clock = Clock()

    def slow_model(batch):
        clock.now += 2.0
        return {"y": Constant(0.0)}

    model = model_of(slow_model)
    _, history = evaluate(model, SlowData(clock, batches(6, 2)), run=Run(model, CPU, clock=clock))
    assert history["info"] == {
        "nb_samples": 6.0,
        "time_s": 2.0 + 4 * 3.0 + 3 * 2.0,
        "samples_per_s": 0.3,
        "wait_s": 14.0,
        "wait_share": 0.7,
    }


def test_what_is_done_between_two_batches_is_not_waiting_for_data():
    clock = Clock()
    run = Run(Net(), CPU, clock=clock, keeps_place=True)

    def write_checkpoint(run):
        clock.now += 100.0

    run.at_boundaries.append(write_checkpoint)
    _, history = evaluate(run.model, SlowData(clock, batches(6, 2)), run=run)
    assert history["info"]["wait_s"] == 2.0 + 4 * 3.0
    assert history["info"]["time_s"] == 4 * 100.0 + 14.0


def test_the_figures_of_a_batch_are_gathered_after_the_hook_that_tells_of_its_loss():
    seen = []

    class Look(Callback):
        def on_loss(self, run):
            seen.append(("loss", run.meter.nb_samples))

        def on_batch_end(self, run):
            seen.append(("end", run.meter.nb_samples))

    run = Run(Net(), CPU, hooks=create_hook_table(per_epoch=[Look()]))
    evaluate(run.model, batches(4, 2), run=run)
    assert seen == [("loss", 0), ("end", 2), ("loss", 2), ("end", 4)]


class AheadOfIts(SlowData):
    """Makes a batch in 20 s beside whatever else is done: it waits for nobody, and one batch waits for it."""

    def _batches(self):
        ready = self.clock.now
        for batch in self.data:
            ready = max(ready, self.clock.now - 20.0) + 20.0
            self.clock.now = max(self.clock.now, ready)
            yield batch


@pytest.mark.parametrize(("step_s", "share"), [(5.0, 0.75), (15.0, 0.25), (40.0, 0.0)])
def test_the_share_of_waiting_for_a_source_that_works_meanwhile(step_s, share):
    """T38, by a clock of ours: of a source of 20 s and a step of 5 s, three quarters; of a fast source nothing."""
    clock = Clock()

    def model(batch):
        clock.now += step_s
        return {"y": Constant(0.0)}

    net = model_of(model)
    history = evaluate(net, AheadOfIts(clock, batches(200, 1)), run=Run(net, CPU, clock=clock))[1]
    assert history["info"]["wait_share"] == pytest.approx(share, abs=0.02)


# Reading values stops the device


class HostReads(TorchDispatchMode):
    """Counts how often the value of a tensor is asked for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("loop", [train, evaluate])
def test_at_most_two_host_reads_in_a_split_of_a_hundred_batches(loop):
    """T14."""
    reads = HostReads()
    with reads:
        loop(Net(), batches(200, 2))
    assert reads.count <= 2


def test_the_counter_of_host_reads_counts():
    reads = HostReads()
    with reads:
        evaluate(Net(), batches(6, 2), (None, [lambda d, s, batch, terms: terms["y"]["loss"].item()]))
    assert reads.count == 3
