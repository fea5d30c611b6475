"""Steps of many batches: gradients, clipping, precision, averages, several optimizers."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from test_loop import Trace
from torch import nn
from toy_training import CPU, Net, batches, samples, sgd, train

from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.training.callback import Callback, create_hook_table
from trw_pipeline.training.loop import default_sum_all_losses, eval_loop, train_loop
from trw_pipeline.training.optimization import Optimization
from trw_pipeline.training.run import Run


class Mlp(nn.Module):
    """No batch normalisation: its statistics are those of each batch."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)

    def forward(self, batch):
        return {"y": OutputClassification(self.body(batch["x"].to(self.body[0].weight.dtype)), "truth")}


class Gradients(Callback):
    """Keeps the gradients of every step, as the optimizer is about to see them."""

    def __init__(self):
        self.of_steps = []

    def on_step_start(self, run):
        self.groups = run.nb_micro_batches

    def before_step(self, optimizer, *_):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.of_steps.append(torch.cat([p.grad.flatten() for p in parameters]).clone())


def trained(model, data, callback=None, rate=0.0, optimizer=None, **arguments):
    """One epoch; returns the gradients of each step and the run."""
    gradients = Gradients()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate) if optimizer is None else optimizer
    optimizer.register_step_pre_hook(gradients.before_step)
    hooks = create_hook_table(per_epoch=[gradients, *([callback] if callback else [])])
    run = Run(model, CPU, hooks=hooks, optimization=Optimization(**arguments), history=[{}], outputs={})
    run.optimization.prepare(model, CPU)
    train(model, data, optimizer=optimizer, run=run)
    return gradients.of_steps, run


def gradient_of(model, whole):
    """Of the mean loss over all samples, by hand."""
    model.zero_grad()
    x = whole["x"].to(model.body[0].weight.dtype)
    nn.functional.cross_entropy(model.body(x), whole["truth"]).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()]).clone()
    model.zero_grad()
    return gradient


def part(whole, start, end):
    return {name: value[start:end] for name, value in whole.items()}


def of_unknown_length(data):
    class Stream:
        def __iter__(self):
            return iter(data)

    return Stream()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_the_gradient_of_k_batches_is_that_of_one_with_all_their_samples(k, dtype, tolerance):
    """T01."""
    model = Mlp(dtype)
    of_steps, _ = trained(model, batches(32, 32 // k), accumulate=k)
    assert len(of_steps) == 1
    torch.testing.assert_close(of_steps[0], gradient_of(model, samples(32)), atol=tolerance, rtol=0)


@pytest.mark.parametrize("wrap", [list, of_unknown_length], ids=["length known", "length unknown"])
@pytest.mark.parametrize(("nb_samples", "size", "k"), [(11, 2, 4), (13, 3, 2), (5, 4, 8), (9, 4, 2)])
def test_the_tail_of_a_split_is_exact(nb_samples, size, k, wrap):
    """LOOP-3, T02: 11 samples, batches of 2, k=4 are steps of the samples 0 to 7 and 8 to 10."""
    model = Mlp(torch.float64)
    of_steps, run = trained(model, wrap(batches(nb_samples, size)), accumulate=k)
    bounds = [*range(0, nb_samples, size * k), nb_samples]
    expected = [gradient_of(model, part(samples(nb_samples), a, b)) for a, b in pairwise(bounds)]
    assert len(of_steps) == len(expected) == run.nb_steps
    for gradient, wanted in zip(of_steps, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=0)


def test_batches_of_any_sizes_count_by_their_samples():
    model = Mlp(torch.float64)
    whole = samples(12)
    data = [part(whole, 0, 1), part(whole, 1, 6), part(whole, 6, 8), part(whole, 8, 12)]
    of_steps, _ = trained(model, data, accumulate=4)
    torch.testing.assert_close(of_steps[0], gradient_of(model, whole), rtol=1e-9, atol=0)


def test_each_epoch_has_its_own_steps_and_ends_without_gradients():
    """LOOP-3, T05."""
    model = Mlp()
    for _ in range(3):
        of_steps, _ = trained(model, batches(12, 2), rate=0.1, accumulate=4)
        assert len(of_steps) == 2
        assert all(parameter.grad is None for parameter in model.parameters())


def test_the_loss_of_an_epoch_does_not_depend_on_the_grouping():
    """T07."""
    losses = [trained(Mlp(), batches(13, 2), accumulate=k)[1].history[-1]["d"]["train"]["y"]["loss"] for k in (1, 2, 4)]
    np.testing.assert_allclose(losses, losses[0], rtol=0, atol=1e-6)


def test_the_hooks_of_three_training_batches_that_make_two_steps():
    """T43."""
    for wrap, tail in ((list, ["step_start", "step_end", "batch_end"]), (of_unknown_length, None)):
        trace = Trace()
        trained(Mlp(), wrap(batches(6, 2)), trace, accumulate=2)
        batch = ["batch_start", "forward_start", "loss", "backward_end"]
        last = tail or ["batch_end", "step_start", "step_end"]
        assert trace.calls == [
            "split_start",
            *batch,
            "batch_end",
            *batch,
            "step_start",
            "step_end",
            "batch_end",
            *batch,
            *last,
            "split_end",
        ]


def test_a_split_that_a_callback_ends_steps_with_what_it_has():
    class Second(Callback):
        def on_batch_end(self, run):
            run.split_stopped = run.batch_index == 1

    model = Mlp(torch.float64)
    of_steps, _ = trained(model, batches(16, 2), Second(), accumulate=4)
    assert len(of_steps) == 1
    torch.testing.assert_close(of_steps[0], gradient_of(model, part(samples(16), 0, 4)), rtol=1e-9, atol=0)


def test_gradients_are_clipped_to_the_norm_of_all_of_them():
    model = Mlp(torch.float64)
    free, _ = trained(model, batches(8, 8))
    limit = float(free[0].norm()) / 3
    clipped, _ = trained(model, batches(8, 4), accumulate=2, clip_norm=limit)
    torch.testing.assert_close(clipped[0], free[0] / 3, rtol=1e-5, atol=0)
    unclipped, _ = trained(model, batches(8, 8), clip_norm=limit * 10)
    torch.testing.assert_close(unclipped[0], free[0])


def test_scaled_gradients_are_unscaled_before_they_are_clipped():
    """T08, on the CPU: the scale begins at 65536."""
    model = Mlp()
    free, _ = trained(model, batches(8, 8))
    limit = float(free[0].norm()) / 3
    clipped, run = trained(model, batches(8, 4), accumulate=2, clip_norm=limit, amp="fp16")
    assert run.scaler.get_scale() == 65536.0
    assert clipped[0].norm() == pytest.approx(limit, rel=1e-2)


class Steep(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.inner = nn.Linear(3, 2)

    def forward(self, batch):
        return {"y": OutputClassification(self.inner(batch["x"]), "truth", loss_scaling=200.0)}


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))],
)
@pytest.mark.parametrize(("clip_norm", "norm"), [(None, None), (1.0, 1.0), (0.25, 0.25)])
def test_the_norm_that_the_optimizer_sees_is_the_clipped_one(device, clip_norm, norm):
    """T08: the norm of the gradients is over 50, so that the first scales overflow; those batches make no step."""
    model = Steep().to(device)
    norms = []

    def note(*arguments):
        norms.append(float(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(note)
    run = Run(model, torch.device(device), optimization=Optimization(clip_norm=clip_norm, amp="fp16"))
    run.optimization.prepare(model, run.device)
    data = batches(8, 8) * 12
    train_loop(run.device, "d", "train", data, optimizer, model, default_sum_all_losses, None, None, None, run=run)
    assert run.scaler.get_scale() < 65536.0
    assert 3 < len(norms) < 12
    if norm is None:
        assert min(norms) > 50
    else:
        assert norms == pytest.approx([norm] * len(norms), abs=1e-3)


def test_an_overflow_in_half_precision_makes_no_step_and_halves_the_scale():
    model = Mlp()
    with torch.no_grad():
        model.body[2].weight *= 1000.0
    before = [parameter.clone() for parameter in model.parameters()]
    _, run = trained(model, [{name: value * 1 for name, value in batches(8, 8)[0].items()}], rate=0.1, amp="fp16")
    assert run.scaler.get_scale() == 32768.0
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(("amp", "dtype"), [(None, torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_training_and_evaluation_run_in_the_precision_asked_for(amp, dtype):
    seen = []

    class Look(Mlp):
        def forward(self, batch):
            heads = super().forward(batch)
            seen.append(heads["y"].output.dtype)
            return heads

    model = Look()
    _, run = trained(model, batches(4, 4), amp=amp)
    eval_loop(CPU, "d", "valid", batches(4, 4), model, run.loss_fn, None, run=run)
    assert seen == [dtype, dtype]
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_the_average_of_the_weights_is_the_exponential_one_and_is_what_is_evaluated():
    model = Mlp(torch.float64)
    history = []

    class Note(Callback):
        def on_step_end(self, run):
            history.append(model.body[0].weight.detach().clone())

    _, run = trained(model, batches(8, 2), Note(), rate=0.5, ema=0.75)
    expected = history[0]
    for weight in history[1:]:
        expected = 0.75 * expected + 0.25 * weight
    torch.testing.assert_close(run.optimization.average.module.body[0].weight, expected)
    assert run.judged(model) is run.optimization.average.module
    run.take_average()
    torch.testing.assert_close(model.body[0].weight, expected)
    assert run.judged(model) is model


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.g, self.d = nn.Linear(2, 3), nn.Linear(3, 1)


def gan_step(run):
    model, real, noise = run.model, run.batch["x"], run.batch["noise"]
    fake = model.g(noise)
    d_loss = model.d(fake.detach()).mean() - model.d(real).mean()
    run.backward(d_loss)
    run.step("d")
    g_loss = -model.d(fake).mean()
    run.backward(g_loss)
    run.step("g")
    run.loss = d_loss + g_loss


def test_a_gan_of_two_optimizers_is_what_a_loop_written_by_hand_makes():
    """T09."""
    generator = torch.Generator().manual_seed(0)
    data = [
        {"x": torch.randn(4, 3, generator=generator), "noise": torch.randn(4, 2, generator=generator)}
        for _ in range(20)
    ]
    ours, by_hand = Gan(), Gan()
    optimizers = {"g": torch.optim.Adam(ours.g.parameters(), 0.01), "d": torch.optim.SGD(ours.d.parameters(), 0.1)}
    trace = Trace()
    run = Run(ours, CPU, hooks=create_hook_table(per_epoch=[trace]), training_step=gan_step)
    train(ours, data, optimizer=optimizers, run=run)

    opt_g, opt_d = torch.optim.Adam(by_hand.g.parameters(), 0.01), torch.optim.SGD(by_hand.d.parameters(), 0.1)
    for batch in data:
        fake = by_hand.g(batch["noise"])
        opt_d.zero_grad()
        (by_hand.d(fake.detach()).mean() - by_hand.d(batch["x"]).mean()).backward()
        opt_d.step()
        opt_g.zero_grad()
        (-by_hand.d(fake).mean()).backward()
        opt_g.step()
    assert all(map(torch.equal, ours.parameters(), by_hand.parameters()))
    assert run.nb_steps == 40
    per_batch = ["batch_start", "forward_start", *["backward_end", "step_start", "step_end"] * 2, "batch_end"]
    assert trace.calls == ["split_start", *per_batch * 20, "split_end"]


def test_gradients_of_a_parameter_that_the_model_has_not_are_of_one_step_too():
    """The weight of a loss, say, which only the optimizer knows."""
    weight = nn.Parameter(torch.tensor(0.0))

    def step(run):
        run.backward(3 * weight)
        run.step()

    run = Run(Net(), CPU, training_step=step)
    train(run.model, [{"x": torch.zeros(2, 3)}] * 3, optimizer=torch.optim.SGD([weight], 1.0), run=run)
    assert weight.item() == -9.0


def test_several_optimizers_all_step_with_the_default_step():
    model = Net()
    optimizers = {
        "norm": torch.optim.SGD(model.body[0].parameters(), 0.1),
        "linear": torch.optim.SGD(model.body[2].parameters(), 0.1),
    }
    before = [parameter.clone() for parameter in model.parameters()]
    train(model, batches(8, 4), optimizer=optimizers)
    assert not any(map(torch.equal, before, model.parameters()))


def test_an_optimizer_that_is_not_there_is_named():
    run = Run(Net(), CPU, training_step=lambda run: run.step("d"))
    with pytest.raises(KeyError, match="'d'"):
        train(run.model, batches(2, 2), optimizer={"g": sgd(run.model)}, run=run)


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"accumulate": 0}, ValueError, "accumulate must be at least 1, got 0"),
        ({"accumulate": 2.0}, TypeError, "accumulate must be an int, got 2.0"),
        ({"accumulate": True}, TypeError, "accumulate must be an int, got True"),
        ({"clip_norm": 0.0}, ValueError, "clip_norm must be positive"),
        ({"clip_norm": math.inf}, ValueError, "clip_norm must be positive and finite"),
        ({"amp": "fp8"}, ValueError, "amp must be None or one of"),
        ({"ema": 1.0}, ValueError, "ema must be a decay"),
        ({"ema": -0.1}, ValueError, "ema must be a decay"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, named):
    with pytest.raises(error, match=named):
        Optimization(**arguments)


@pytest.mark.parametrize("denominators", [(0, 3, 1), (3, 0, 1)])
def test_a_batch_whose_loss_has_nothing_to_divide_by_has_no_weight(denominators):
    """Batches of an empty mask, say: the gradient is that of the others, each by what it has."""
    weight = nn.Parameter(torch.tensor(0.0))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    optimization = Optimization(accumulate=3)
    for denominator, slope in zip(denominators, (2.0, 4.0, 8.0), strict=True):
        optimization.take(denominator, denominator)
        optimization.backward(weight * slope)
    expected = sum(d * s for d, s in zip(denominators, (2.0, 4.0, 8.0), strict=True)) / sum(denominators)
    optimization.step({"": optimizer})
    assert weight.item() == pytest.approx(-expected)
