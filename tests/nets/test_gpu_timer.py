from types import SimpleNamespace

import pytest
import torch

from trw_pipeline.nets.gpu_timer import gpu_seconds, gpu_timer


@pytest.fixture
def calls(monkeypatch):
    """What torch.cuda is asked for, in order; it has had 3 MB at most."""
    log = []

    class Event:
        def __init__(self, enable_timing):
            log.append(("Event", enable_timing))

        def record(self, stream):
            log.append(("record", stream))

    cuda = SimpleNamespace(
        Event=Event,
        get_device_name=lambda device: f"name of {device}",
        current_stream=lambda device: f"stream of {device}",
        max_memory_allocated=lambda device: log.append(("max", str(device))) or 3 * 2**20,
        reset_peak_memory_stats=lambda device: log.append(("reset", str(device))),
        synchronize=lambda device: log.append(("synchronize", str(device))),
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    return log


def test_only_a_cuda_device_has_one(calls):
    assert gpu_timer(torch.device("cpu")) is None
    timer = gpu_timer(torch.device("cuda", 1))
    assert timer is not None
    assert timer.name == "name of cuda:1"


def test_a_mark_is_put_on_the_current_stream_of_the_device_and_waits_for_nothing(calls):
    gpu_timer(torch.device("cuda", 1)).mark()
    assert calls == [("Event", True), ("record", "stream of cuda:1")]


def test_the_peak_of_memory_begins_anew_once_it_is_read(calls):
    assert gpu_timer(torch.device("cuda", 1)).take_peak_mb() == 3.0
    assert calls == [("max", "cuda:1"), ("reset", "cuda:1")]


def test_waiting_is_for_that_device(calls):
    gpu_timer(torch.device("cuda", 1)).wait()
    assert calls == [("synchronize", "cuda:1")]


def test_the_milliseconds_of_torch_become_seconds():
    start = SimpleNamespace(elapsed_time=lambda end: 250.0)
    assert gpu_seconds(start, SimpleNamespace()) == 0.25
