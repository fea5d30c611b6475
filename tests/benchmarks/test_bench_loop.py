import pytest
import torch

from benchmarks import bench_loop
from benchmarks.bench_loop import NB_EPOCHS, Batches, by_hand, measure


@pytest.mark.slow
@pytest.mark.parametrize("name", bench_loop.CONTENDERS)
def test_every_contender_makes_the_steps_of_the_loop_by_hand(name):
    if name in ("ignite", "lightning"):
        pytest.importorskip(name)
    figures = measure(bench_loop.CONTENDERS[name], nb_steps=3)
    assert figures["over_us"] == figures["us"] - figures["by_hand_us"]


def test_other_steps_stop_the_measurement():
    def fewer_updates(batches):
        model = by_hand(batches)
        torch.nn.init.zeros_(model[0].weight)
        return model

    with pytest.raises(RuntimeError, match="has not made the same steps"):
        measure(fewer_updates, nb_steps=3)


def test_a_step_costs_what_the_fastest_epoch_behind_the_first_took(monkeypatch):
    clock = iter([0.0, 1.0, 5.0, 7.0, 17.0, 27.0, 37.0])
    monkeypatch.setattr(bench_loop.time, "process_time", lambda: next(clock))
    batches = Batches(4)
    for _ in range(NB_EPOCHS):
        assert len(list(batches)) == 4
    assert batches.step_us() == 1e6 * 2.0 / 4


def test_a_training_of_too_few_epochs_has_no_figure():
    batches = Batches(4)
    list(batches)
    with pytest.raises(RuntimeError, match="7 epochs of 4 steps"):
        batches.step_us()
