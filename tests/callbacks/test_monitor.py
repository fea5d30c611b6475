"""Where the time of a training goes. The numbers T.. are those of the project's list of checks."""

import math
import re
import time

import numpy as np
import pytest
import torch
from toy_costs import Costs, SlowSplit, fit, table_of, with_gpu

from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.callbacks.monitor import MonitorCallback
from trw_pipeline.training.callback import Callback, create_hook_table

PLANNED = {
    "data": 10.0,
    "forward": 2.0,
    "backward": 4.0,
    "step": 1.0,
    "valid data": 20.0,
    "evaluation": 3.0,
    "metric": 1.0,
}


def monitor(**arguments):
    return MonitorCallback(**{"num_measurements": 0, "warmup_iterations": 0, **arguments})


def test_the_table_begins_with_the_columns_of_the_reference_in_order(tmp_path):
    """T29."""
    folder = fit(tmp_path, Costs(), monitor())
    assert (folder / "logs" / "computational.tsv").read_text().split("\n")[0].split("\t")[:22] == [
        "Training (s)",
        "Epoch (s)",
        "Training loop (s)",
        "Training data loading (s)",
        "Forward (s)",
        "Forward GPU (s)",
        "Forward GPU max memory (MB)",
        "Backward (s)",
        "Backward GPU (s)",
        "Backward GPU max memory (MB)",
        "Optimization (s)",
        "Optimization GPU (s)",
        "Optimization GPU max memory (MB)",
        "Validation (s)",
        "Validation loop (s)",
        "Validation data loading (s)",
        "Evaluation (s)",
        "Evaluation GPU (s)",
        "Evaluation GPU max memory (MB)",
        "Metrics computation (s)",
        "Metrics computation GPU (s)",
        "Metrics computation GPU max memory (MB)",
    ]


def test_every_phase_takes_what_was_planned(tmp_path):
    """T31: three batches of training and two of validation in each of two epochs."""
    table = table_of(fit(tmp_path, Costs(PLANNED), monitor()))
    measured = {column: values for column, values in table.items() if values}
    assert measured == {
        "Training (s)": [2 * (3 * 17.0 + 2 * 24.0)],
        "Epoch (s)": [99.0] * 2,
        "Training loop (s)": [17.0] * 6,
        "Training data loading (s)": [10.0] * 6,
        "Forward (s)": [2.0] * 6,
        "Backward (s)": [4.0] * 6,
        "Optimization (s)": [1.0] * 6,
        "Validation (s)": [48.0] * 2,
        "Validation loop (s)": [24.0] * 4,
        "Validation data loading (s)": [20.0] * 4,
        "Evaluation (s)": [3.0] * 4,
        "Metrics computation (s)": [1.0] * 4,
        "Training host to device (s)": [0.0] * 6,
        "Training other (s)": [0.0] * 6,
        "Training device wait (s)": [10.0] * 6,
        "Training samples": [2.0] * 6,
        "Validation host to device (s)": [0.0] * 4,
        "Validation other (s)": [0.0] * 4,
        "Validation device wait (s)": [20.0] * 4,
        "Validation samples": [2.0] * 4,
        "Epoch device wait share": [30 / 51] * 2,
    }


class RealClock:
    now = 0.0  # moving it does nothing

    def __call__(self):
        return time.perf_counter()


def test_the_phases_of_an_iteration_add_up_to_it(tmp_path):
    """T34, by the real clock: what no phase has is `other`."""
    costs = Costs()
    costs.clock = RealClock()
    table = table_of(fit(tmp_path, costs, monitor()))
    shares = ("data loading", "host to device", "other")
    for kind, phases in {
        "Training": ("Forward", "Backward", "Optimization"),
        "Validation": ("Evaluation", "Metrics computation"),
    }.items():
        columns = [*(f"{kind} {share} (s)" for share in shares), *(f"{phase} (s)" for phase in phases)]
        sums = np.sum([table[column] for column in columns], axis=0)
        np.testing.assert_allclose(sums, table[f"{kind} loop (s)"], rtol=1e-9)
        assert min(min(table[column]) for column in columns) >= 0


def test_what_callbacks_do_after_a_batch_is_no_phase(tmp_path):
    """T34 the other way: 5 % of an iteration are left for it, as they were planned."""

    class Slow(Callback):
        def on_batch_end(self, run):
            costs.clock.now += 0.5

    costs = Costs({"data": 4.0, "forward": 5.5})
    table = table_of(fit(tmp_path, costs, monitor(), Slow()))
    assert table["Training other (s)"] == [0.5] * 6
    assert table["Training loop (s)"] == [10.0] * 6


def test_a_checkpoint_between_batches_is_no_data_loading(tmp_path):
    costs = Costs(PLANNED)

    class Slow(Callback):
        def on_fit_start(self, run):
            run.keeps_place = True
            run.at_boundaries.append(self.write)

        def write(self, run):
            costs.clock.now += 100.0

    table = table_of(fit(tmp_path, costs, monitor(), Slow(), num_epochs=1))
    assert table["Training data loading (s)"] == [10.0] * 3
    assert table["Training other (s)"] == [100.0] * 3


@pytest.mark.parametrize("valid_first", [True, False])
def test_warming_up_takes_batches_that_are_trained_on(tmp_path, valid_first):
    """T32."""
    costs = Costs(PLANNED)
    splits = {"train": SlowSplit(costs, 20), "valid": SlowSplit(costs, 4, "valid data")}
    if valid_first:
        splits = dict(reversed(splits.items()))
    callback = monitor(warmup_iterations=2)
    table = table_of(fit(tmp_path, costs, callback, splits=splits, num_epochs=1))
    phases = ("Training loop", "Training data loading", "Forward", "Backward", "Optimization")
    assert [len(table[f"{phase} (s)"]) for phase in phases] == [8] * 5
    assert len(table["Evaluation (s)"]) == (0 if valid_first else 2)
    assert callback.n_iterations == 10


def test_so_many_iterations_are_measured_and_all_epochs(tmp_path):
    table = table_of(fit(tmp_path, Costs(PLANNED), monitor(num_measurements=3), num_epochs=4))
    rows = {column: len(values) for column, values in table.items() if values}
    assert rows["Training loop (s)"] == rows["Forward (s)"] == rows["Evaluation (s)"] == 3
    assert rows["Epoch (s)"] == rows["Validation (s)"] == rows["Epoch device wait share"] == 4


def test_the_samples_are_those_that_were_there(tmp_path):
    """Eleven in batches of two, in groups of four batches: the throughput is that of eleven."""
    costs = Costs({"data": 1.0})
    folder = fit(tmp_path, costs, monitor(), nb_train=11, num_epochs=1, accumulate=4)
    table = table_of(folder)
    assert table["Training samples"] == [2.0] * 5 + [1.0]
    assert table["Optimization (s)"] == [None, None, None, 0.0, None, 0.0]
    assert len(table["Forward (s)"]) == 6
    text = (folder / "summary.log").read_text()
    assert f"Throughput: {11 / 6:.1f} images/s" in text
    assert "Trained with 11 samples\nValidated on 4 samples\n" in text


def test_a_device_that_waits_for_its_data_shows_for_which_share_of_the_time(tmp_path):
    """T38: data made in 20 ms beside a step of 5 ms, and data made in time."""

    class Beside:
        """Begins to make the next batch when one is taken."""

        def __init__(self, costs, seconds):
            self.costs, self.seconds = costs, seconds

        def __iter__(self):
            for _ in range(40):
                ready = self.costs.clock.now + self.seconds
                yield {"x": torch.zeros(2, 1)}
                self.costs.clock.now = max(self.costs.clock.now, ready)

    for seconds, low, high in ((0.020, 0.70, 0.80), (0.004, 0.0, 0.05)):
        costs = Costs({"forward": 0.002, "backward": 0.002, "step": 0.001})
        name = f"{seconds}"
        table = table_of(fit(tmp_path / name, costs, monitor(), splits={"train": Beside(costs, seconds)}))
        assert all(low <= share <= high for share in table["Epoch device wait share"])
        assert len(table["Epoch device wait share"]) == 2


def test_of_the_final_evaluation_only_the_total_is_measured(tmp_path):
    table = table_of(fit(tmp_path, Costs(PLANNED), monitor(), num_epochs=1, with_final_evaluation=True))
    assert (len(table["Validation (s)"]), len(table["Evaluation (s)"])) == (1, 2)
    # The final one evaluates both splits: data 10 and 20, evaluation 3, metric 1.
    assert table["Training (s)"] == [99.0 + 3 * 14.0 + 2 * 24.0]


# The summary


def test_the_summary_is_that_of_the_table(tmp_path):
    """T30."""
    costs = Costs({"data": 1.0, "end": 0.25, "valid data": 0.5})
    generator = np.random.default_rng(0)
    spend = costs.spend

    def irregular(part):
        costs.clock.now += generator.exponential(0.01)
        spend(part)

    costs.spend = irregular
    folder = fit(tmp_path, costs, monitor(warmup_iterations=1), num_epochs=3)
    table = table_of(folder)
    columns = [
        "Training (s)",
        "Epoch (s)",
        "Training loop (s)",
        "Training data loading (s)",
        "Training host to device (s)",
        "Forward (s)",
        "Backward (s)",
        "Optimization (s)",
        "Training other (s)",
        "Validation (s)",
        "Validation loop (s)",
        "Validation data loading (s)",
        "Validation host to device (s)",
        "Evaluation (s)",
        "Metrics computation (s)",
        "Validation other (s)",
    ]
    lines = (folder / "summary.log").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if line.count(" | ") == 3]
    assert [cells[1].strip() for cells in rows] == ["Time (s)", *(cell_of(table[column]) for column in columns)]
    assert {len(line) for line in lines if " | " in line} == {106}


def cell_of(values):
    if len(values) == 1:
        return f"{values[0]:.2e} [1]"
    return f"{np.mean(values):.2e} ± {np.std(values, ddof=1):.2e} [{len(values)}]"


def test_a_training_that_was_never_warm_has_no_throughput(tmp_path):
    folder = fit(tmp_path, Costs(PLANNED), MonitorCallback())
    text = (folder / "summary.log").read_text()
    assert text.count("Throughput: not measured\n") == 2
    assert "nan" not in text.lower()
    assert "Device waited for data: 58.8 % of the time [2]\n" in text
    assert re.search(r"^Date: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}$", text, re.MULTILINE)
    assert text.endswith("\nTraining completed after 2 epochs\n")


def test_a_training_without_epochs_has_a_summary(tmp_path):
    folder = fit(tmp_path, Costs(PLANNED), monitor(), num_epochs=0, with_final_evaluation=True)
    assert "Trained with 0 samples\nValidated on 0 samples\n" in (folder / "summary.log").read_text()
    assert table_of(folder)["Training (s)"] == [3 * 14.0 + 2 * 24.0]


def breaking(hook, at, error=KeyboardInterrupt):
    """A callback that ends the training at a hook, the `at`-th time it comes."""
    calls = []

    def break_off(self, run):
        calls.append(run)
        if len(calls) == at:
            raise error

    return type("Breaks", (Callback,), {hook: break_off})()


def test_a_training_that_is_interrupted_leaves_what_was_measured(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, Costs(PLANNED), monitor(), breaking("on_loss", 7))  # the second batch of the second epoch
    folder = tmp_path / "default_r0"
    assert (folder / "summary.log").read_text().endswith("\nTraining interrupted after 1 epochs\n")
    table = table_of(folder)
    assert table["Epoch (s)"] == [99.0]
    assert table["Training loop (s)"] == [17.0] * 4
    assert table["Training (s)"] == [99.0 + 17.0 + 12.0]


def test_an_epoch_that_is_over_counts_though_the_training_ends_with_an_error_there(tmp_path):
    with pytest.raises(OSError, match="disk full"):
        fit(tmp_path, Costs(PLANNED), monitor(), breaking("on_epoch_end", 1, OSError("disk full")))
    assert table_of(tmp_path / "default_r0")["Epoch (s)"] == [99.0]


def test_the_table_is_there_at_the_end_of_each_epoch(tmp_path):
    seen = []

    class Look(Callback):
        def on_epoch_start(self, run):
            if run.epoch:
                seen.append(len(table_of(run.log_dir)["Epoch (s)"]))

    fit(tmp_path, Costs(PLANNED), monitor(), Look(), num_epochs=4)
    assert seen == [1, 2, 3]


# Resuming


@pytest.mark.parametrize("checkpoint_first", [True, False])
@pytest.mark.parametrize("break_at", [2, 5, 6, 8, 10])
@pytest.mark.slow
def test_a_training_that_was_broken_off_measures_what_one_that_never_was_does(tmp_path, break_at, checkpoint_first):
    """T32: also its warm-up goes on; broken off in both splits of both epochs, with a checkpoint at every step."""

    def callbacks():
        both = [monitor(warmup_iterations=2), CallbackCheckpoint(every_n_steps=1)]
        return reversed(both) if checkpoint_first else both

    expected = table_of(fit(tmp_path / "whole", Costs(PLANNED), *callbacks()))
    costs = Costs(PLANNED)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, costs, *callbacks(), breaking("on_batch_start", break_at))
    costs.clock.now += 1e6
    folder = fit(tmp_path, costs, *callbacks(), resume=tmp_path / "default_r0")
    table = table_of(folder)
    assert table == expected
    assert (folder / "summary.log").read_text().endswith("\nTraining completed after 2 epochs\n")


def test_the_time_between_is_not_counted(tmp_path):
    costs = Costs(PLANNED)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, costs, monitor(), CallbackCheckpoint(), breaking("on_epoch_start", 2))
    costs.clock.now += 1e6
    table = table_of(fit(tmp_path, costs, monitor(), CallbackCheckpoint(), resume=tmp_path / "default_r0"))
    assert table["Training (s)"] == [2 * 99.0]
    assert table["Epoch (s)"] == [99.0] * 2


def test_the_state_is_the_same_after_it_was_loaded_and_does_not_move_while_nothing_runs(tmp_path):
    callback = monitor()
    fit(tmp_path, Costs(PLANNED), callback)
    state = callback.state_dict()
    fresh = monitor()
    fresh.load_state_dict(state)
    assert fresh.state_dict() == state
    state["rows"]["epochs"].clear()
    assert len(fresh.state_dict()["rows"]["epochs"]) == 2


# On a device of its own


def test_the_device_is_timed_by_its_own_work_and_nobody_waits_for_it(tmp_path, monkeypatch):
    """The host asks for everything at once, and the device works on it long after."""
    costs = with_gpu(monkeypatch, Costs({"data": 2.0}, {"forward": 10.0, "backward": 20.0, "step": 5.0}, gpu=True))
    folder = fit(tmp_path, costs, monitor(), splits={"train": SlowSplit(costs, 6)}, num_epochs=1)
    table = table_of(folder)
    assert costs.gpu.nb_waits == 0
    assert table["Forward GPU (s)"] == [10.0] * 3
    assert table["Backward GPU (s)"] == [20.0] * 3
    assert table["Optimization GPU (s)"] == [5.0] * 3
    assert table["Forward (s)"] == table["Backward (s)"] == [0.0] * 3
    # Only for the first batch there was nothing else to do; the split takes until the device is done.
    assert table["Training device wait (s)"] == [2.0, 0.0, 0.0]
    assert table["Epoch device wait share"] == [2.0 / (2.0 + 3 * 35.0)]
    text = (folder / "summary.log").read_text()
    assert "GPU: 'Fake'\n" in text
    assert f"GPU throughput: {6 / 105:.1f} images/s" in text


def test_a_device_that_is_idle_before_its_data_comes_has_waited_that_long(tmp_path, monkeypatch):
    costs = with_gpu(monkeypatch, Costs({"data": 50.0}, {"forward": 35.0}, gpu=True))
    table = table_of(fit(tmp_path, costs, monitor(), splits={"train": SlowSplit(costs, 6)}, num_epochs=1))
    assert table["Training data loading (s)"] == [50.0] * 3
    assert table["Training device wait (s)"] == [50.0, 15.0, 15.0]
    assert table["Epoch device wait share"] == [80.0 / 185.0]


def test_a_device_that_is_idle_while_a_callback_works_does_not_wait_for_data(tmp_path, monkeypatch):
    costs = with_gpu(monkeypatch, Costs({"data": 3.0}, {"forward": 10.0}, gpu=True))

    class Slow(Callback):
        def on_batch_end(self, run):
            costs.clock.now += 100.0

    table = table_of(fit(tmp_path, costs, monitor(), Slow(), splits={"train": SlowSplit(costs, 6)}, num_epochs=1))
    assert table["Training device wait (s)"] == [3.0] * 3


def test_the_wait_of_the_device_counts_all_batches_and_not_only_those_that_are_measured(tmp_path, monkeypatch):
    costs = with_gpu(monkeypatch, Costs({"data": 50.0}, {"forward": 35.0}, gpu=True))
    callback = monitor(num_measurements=1)
    table = table_of(fit(tmp_path, costs, callback, splits={"train": SlowSplit(costs, 6)}, num_epochs=1))
    assert table["Training device wait (s)"] == [50.0]
    assert table["Epoch device wait share"] == [80.0 / 185.0]
    assert costs.gpu.nb_waits == 0


def test_with_sync_the_times_of_the_host_are_those_of_the_work(tmp_path, monkeypatch):
    """T35, the part that needs no GPU: the device never shows more than the host."""
    work = {"forward": 10.0, "backward": 20.0, "step": 5.0, "evaluation": 7.0, "metric": 1.0}
    costs = with_gpu(monkeypatch, Costs(PLANNED, work, gpu=True))
    table = table_of(fit(tmp_path, costs, monitor(sync=True)))
    assert table["Forward (s)"] == [12.0] * 6
    assert table["Backward (s)"] == [24.0] * 6
    assert table["Optimization (s)"] == [6.0] * 6
    assert table["Evaluation (s)"] == [10.0] * 4
    for phase in ("Forward", "Backward", "Optimization", "Evaluation", "Metrics computation"):
        pairs = zip(table[f"{phase} GPU (s)"], table[f"{phase} (s)"], strict=True)
        assert all(0 < gpu_s <= host_s for gpu_s, host_s in pairs)
    assert table["Training device wait (s)"] == [10.0] * 6


def test_memory_shows_in_the_phase_that_takes_it_alone(tmp_path, monkeypatch):
    """T36, the part that needs no GPU."""
    costs = with_gpu(monkeypatch, Costs(peaks_mb={"backward": 256.0}, gpu=True))
    table = table_of(fit(tmp_path, costs, monitor()))
    peaks = {column: set(values) for column, values in table.items() if "memory" in column and values}
    assert peaks == {
        "Forward GPU max memory (MB)": {0.0},
        "Backward GPU max memory (MB)": {256.0},
        "Optimization GPU max memory (MB)": {0.0},
        "Evaluation GPU max memory (MB)": {0.0},
        "Metrics computation GPU max memory (MB)": {0.0},
    }


def test_the_state_has_also_what_the_device_has_yet_to_pass(tmp_path, monkeypatch):
    costs = with_gpu(monkeypatch, Costs({"data": 1.0}, {"forward": 10.0}, gpu=True))
    callback = monitor()
    states = []

    class Save(Callback):
        def on_epoch_start(self, run):
            run.keeps_place = True
            run.at_boundaries.append(lambda run: states.append(callback.state_dict()))

    fit(tmp_path, costs, callback, Save(), splits={"train": SlowSplit(costs, 6)}, num_epochs=1)
    assert [len(state["rows"]["Training"]) for state in states] == [0, 1, 2]
    assert states[-1]["rows"]["Training"][-1]["Forward GPU (s)"] == 10.0


def test_a_resumed_training_names_all_the_devices_it_ran_on(tmp_path, monkeypatch):
    first = with_gpu(monkeypatch, Costs(PLANNED, gpu=True))
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, first, monitor(), CallbackCheckpoint(), breaking("on_epoch_start", 2))
    second = with_gpu(monkeypatch, Costs(PLANNED, gpu=True))
    second.gpu.name = "Other"
    folder = fit(tmp_path, second, monitor(), CallbackCheckpoint(), resume=tmp_path / "default_r0")
    assert "\nGPU: 'Fake' then 'Other'\n" in (folder / "summary.log").read_text()


def test_after_an_error_the_device_is_not_asked_any_more(tmp_path, monkeypatch):
    costs = with_gpu(monkeypatch, Costs({"data": 1.0}, {"forward": 10.0}, gpu=True))
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, costs, monitor(), breaking("on_loss", 3), splits={"train": SlowSplit(costs, 6)})
    assert costs.gpu.nb_waits == 0
    assert "interrupted after 0 epochs" in (tmp_path / "default_r0" / "summary.log").read_text()


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@needs_cuda
def test_on_cuda_the_times_are_seconds():
    """T35: against marks placed by hand, around work of about a tenth of a second."""
    from trw_pipeline.nets.gpu_timer import gpu_timer
    from trw_pipeline.training.laps import Laps

    device = torch.device("cuda", 0)
    matrix = torch.rand(4096, 4096, device=device)
    laps = Laps(time.perf_counter, gpu_timer(device), sync=True)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    laps.arrive(0.0)
    start.record()
    for _ in range(30):
        matrix @ matrix
    end.record()
    laps.lap("work")
    assert laps.gpu_seconds()["work"] == pytest.approx(start.elapsed_time(end) / 1000, rel=0.05)
    assert laps.gpu_seconds()["work"] <= 1.02 * laps.seconds["work"]


@needs_cuda
def test_on_cuda_memory_shows_in_the_phase_that_takes_it_alone():
    """T36."""
    from trw_pipeline.nets.gpu_timer import gpu_timer
    from trw_pipeline.training.laps import Laps

    laps = Laps(time.perf_counter, gpu_timer(torch.device("cuda", 0)))
    before_mb = torch.cuda.memory_allocated() / 2**20
    laps.lap("before")
    block = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
    del block
    laps.lap("with it")
    laps.lap("after")
    peaks = {phase: peak - before_mb for phase, peak in laps.peaks_mb.items()}
    assert peaks["with it"] == pytest.approx(256.0, abs=1.0)
    assert peaks["after"] == pytest.approx(0.0, abs=1.0)


# Turned off, and wrong arguments


def test_turned_off_it_is_called_nowhere_and_writes_nothing(tmp_path):
    """T42."""
    callback = MonitorCallback(enabled=False)
    assert not any(create_hook_table(per_epoch=[callback]).values())
    folder = fit(tmp_path, Costs(PLANNED), callback)
    assert not (folder / "logs").exists()
    assert not (folder / "summary.log").exists()


@pytest.mark.parametrize("name", ["num_measurements", "warmup_iterations"])
def test_numbers_that_make_no_sense_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 0, got -1"):
        MonitorCallback(**{name: -1})
    for wrong in (1.0, True, "3", math.nan):
        with pytest.raises(TypeError, match=f"{name} must be an int, got"):
            MonitorCallback(**{name: wrong})
