"""The monitor of resources: what its figures are, and that it disturbs nobody."""

import math
import subprocess
import sys
import threading
import types
from collections.abc import Iterator

import psutil
import pytest

from trw_pipeline import resources
from trw_pipeline.resources import CPU_FIGURES, GIB, Figures, ResourceMonitor


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """A sample is waited for however busy the machine is, where a test does not say otherwise."""
    monkeypatch.setattr(resources, "_SAMPLE_S", 60.0)


@pytest.fixture
def monitor_of() -> Iterator:
    made = []

    def make(*arguments, **keywords):
        made.append(ResourceMonitor(*arguments, **keywords))
        return made[-1]

    yield make
    for monitor in made:
        monitor.close()


@pytest.fixture
def samples_are(monkeypatch):
    """Replaces the machine by one with planned figures; its samples are one second apart."""

    def plan(planned):
        class Planned:
            def __init__(self, gpus, ours):
                self.samples = iter(planned)
                self.at = 0.0

            def read(self):
                self.at += 1.0
                figures = next(self.samples)
                return None if figures is None else resources._Sample(self.at, figures, {})

        monkeypatch.setattr(resources, "_Machine", Planned)

    return plan


def window_of(*samples):
    window = resources._Window()
    for at, cpu_s in samples:
        window.add(resources._Sample(at, {}, cpu_s))
    return window.figures()


def test_a_window_shorter_than_the_interval_has_two_samples_and_no_zero_memory(monitor_of):
    """T40. An interval of an hour holds nobody up, or this would not end."""
    monitor = monitor_of(3600)
    for _ in range(3):
        monitor.begin()
        figures = monitor.end()
        assert set(figures) | {"cpu_percent"} == set(CPU_FIGURES)
        assert all(figures[name].n >= 2 for name in set(figures) - {"cpu_percent"})
        assert figures["cpu_rss"].min * GIB > 2**20
        assert figures["cpu_vms"].min >= figures["cpu_rss"].min
        assert 0 < figures["cpu_memory_used"].max * GIB <= psutil.virtual_memory().total
        assert figures["cpu_processes"].min >= 1


def test_mean_least_greatest_and_number_are_those_of_all_samples_of_the_window(monitor_of, samples_are):
    samples_are([{"cpu_rss": 1.0}, {"cpu_rss": 4.0}, {"cpu_rss": 30.0}, {"cpu_rss": 10.0}])
    monitor = monitor_of(3600)
    monitor.begin()
    assert monitor.end()["cpu_rss"] == Figures(mean=2.5, min=1.0, max=4.0, n=2)
    monitor.begin()
    assert monitor.end()["cpu_rss"] == Figures(mean=20.0, min=10.0, max=30.0, n=2)


def test_samples_come_at_the_interval(monitor_of, monkeypatch):
    enough, count = threading.Event(), iter(range(10**9))

    class Counts:
        def __init__(self, gpus, ours):
            pass

        def read(self):
            n = next(count)
            if n >= 5:
                enough.set()
            return resources._Sample(float(n), {"cpu_rss": 1.0}, {})

    monkeypatch.setattr(resources, "_Machine", Counts)
    monitor = monitor_of(0.001)
    monitor.begin()
    assert enough.wait(30)
    assert monitor.end()["cpu_rss"].n >= 6


def test_nothing_is_measured_without_a_window(monitor_of):
    monitor = monitor_of(3600)
    assert monitor.end() == {}
    monitor.begin()
    assert monitor.end()
    assert monitor.end() == {}


def test_cpu_percent_is_cpu_time_by_elapsed_time():
    one, other = object(), object()
    figures = window_of((0.0, {one: 5.0}), (2.0, {one: 6.0}), (4.0, {one: 8.0, other: 1.0}))
    assert figures["cpu_percent"] == Figures(mean=(50 + 150) / 2, min=50.0, max=150.0, n=2)


def test_a_process_that_has_ended_takes_nothing_away_from_the_cpu_time():
    worker, rest = object(), object()
    figures = window_of((0.0, {worker: 100.0, rest: 0.0}), (2.0, {rest: 1.0}))
    assert figures["cpu_percent"] == Figures(50.0, 50.0, 50.0, 1)


def test_cpu_time_is_measured_over_no_time_too_short_for_it_where_there_is_a_longer_one():
    """Else a last sample that comes right after another one would say 1000 %."""
    process = object()
    figures = window_of((0.0, {process: 0.0}), (1.0, {process: 1.0}), (1.001, {process: 1.01}))
    assert figures["cpu_percent"] == Figures(100.0, 100.0, 100.0, 1)
    assert window_of((0.0, {process: 0.0}), (0.05, {process: 0.05}))["cpu_percent"].mean == pytest.approx(100.0)


def test_processes_under_this_one_count(monitor_of):
    monitor = monitor_of(3600)
    monitor.begin()
    before = monitor.end()
    child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1)
    assert child.stdout is not None
    assert child.stdout.readline() == b"1\n"
    try:
        monitor.begin()
        figures = monitor.end()
    finally:
        child.communicate(b"\n")
    assert figures["cpu_processes"].max == before["cpu_processes"].max + 1
    assert figures["cpu_open_files"].min >= before["cpu_open_files"].min + 3


def test_a_process_that_ends_while_it_is_read_is_left_out(monitor_of, monkeypatch, caplog):
    """LOG-5: workers die while they are observed."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    gone = psutil.Process(child.pid)
    child.communicate(b"\n")
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive: [gone])
    monitor = monitor_of(3600)
    monitor.begin()
    figures = monitor.end()
    assert figures["cpu_processes"] == Figures(1.0, 1.0, 1.0, 2)
    assert not caplog.records


def test_a_machine_that_tells_nothing_is_told_of_once(monitor_of, monkeypatch, caplog):
    def refuse():
        raise PermissionError("not here")

    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    monitor = monitor_of(3600)
    for _ in range(3):
        monitor.begin()
        assert monitor.end() == {}
    assert [record.getMessage() for record in caplog.records] == [
        "the figures of the machine can not be read: not here"
    ]


def test_a_driver_that_hangs_holds_up_nobody(monitor_of, monkeypatch, caplog):
    released = threading.Event()

    class Hangs:
        def __init__(self, gpus, ours):
            released.wait(60)

        def read(self):
            return None

    monkeypatch.setattr(resources, "_Machine", Hangs)
    monkeypatch.setattr(resources, "_SAMPLE_S", 0.01)
    monkeypatch.setattr(resources, "_CLOSE_S", 0.01)
    monitor = monitor_of(3600)
    for _ in range(3):
        monitor.begin()
        assert monitor.end() == {}
    monitor.close()
    assert not released.is_set()
    assert len(caplog.records) == 1
    assert "longer than 0.01 s" in caplog.text
    released.set()
    monitor._thread.join(60)


def test_a_closed_monitor_has_no_thread_and_begins_nothing(monitor_of):
    monitor = monitor_of()
    monitor.close()
    monitor.close()
    with pytest.raises(RuntimeError, match="closed"):
        monitor.begin()
    assert not [thread for thread in threading.enumerate() if thread.name == "trw-resources"]


@pytest.mark.parametrize(
    ("interval", "error"), [(0, ValueError), (-1.0, ValueError), (math.inf, ValueError), ("5", TypeError)]
)
def test_the_interval_is_positive_and_finite(interval, error):
    with pytest.raises(error, match="interval_s must be"):
        ResourceMonitor(interval)


class NVMLError(Exception):
    pass


def nvml(monkeypatch, **functions):
    """Puts a driver of one GPU in place, but for the functions given."""

    def device(name):
        if name != "GPU-1":
            raise NVMLError("not found")
        return name

    driver = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=device,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=2 * GIB, free=6 * GIB, total=8 * GIB),
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=70, memory=1),
    )
    for name, function in functions.items():
        setattr(driver, name, function)
    monkeypatch.setitem(sys.modules, "pynvml", driver)


def gpu_figures(monitor_of, names=("GPU-1",)):
    monitor = monitor_of(3600, names)
    monitor.begin()
    return {name: figures.mean for name, figures in monitor.end().items() if name.startswith("gpu")}


def failing(*arguments):
    raise NVMLError("driver is gone")


def test_the_figures_of_a_gpu_by_hand(monitor_of, monkeypatch, caplog):
    nvml(monkeypatch)
    memory = {"gpu_memory_used": 2.0, "gpu_memory_free": 6.0, "gpu_memory_percent": 25.0}
    assert gpu_figures(monitor_of) == {**memory, "gpu_percent": 70.0}
    assert gpu_figures(monitor_of, ("MIG-7", "GPU-1")) == {**memory, "gpu_percent": 70.0}
    assert gpu_figures(monitor_of, ()) == {}
    assert not caplog.records


@pytest.mark.parametrize(
    "functions",
    [
        {"nvmlInit": failing},
        {"nvmlDeviceGetHandleByUUID": failing},
        {
            "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(used=0, free=0, total=0),
            "nvmlDeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(gpu="N/A"),
        },
    ],
    ids=["no_driver", "no_device", "garbage"],
)
def test_a_gpu_that_can_not_be_read_is_told_of_and_has_no_figures(monitor_of, monkeypatch, caplog, functions):
    """LOG-5."""
    nvml(monkeypatch, **functions)
    assert gpu_figures(monitor_of) == {}
    messages = [record.getMessage() for record in caplog.records]
    assert messages
    assert len(set(messages)) == len(messages)


def test_without_the_extra_a_warning_names_it(monitor_of, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_figures(monitor_of) == {}
    assert "pip install 'trw_pipeline[gpu]'" in caplog.text
    assert len(caplog.records) == 1


def test_what_a_gpu_can_tell_is_there_where_another_figure_is_not(monitor_of, monkeypatch):
    """A part of a GPU has memory of its own, and no load."""
    nvml(monkeypatch, nvmlDeviceGetUtilizationRates=failing)
    assert set(gpu_figures(monitor_of)) == {"gpu_memory_used", "gpu_memory_free", "gpu_memory_percent"}
