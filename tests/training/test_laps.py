import pytest
from hypothesis import given
from hypothesis import strategies as st

from trw_pipeline.training.laps import DATA, OTHER, Laps


class Clock:
    def __init__(self):
        self.now = 7.0

    def __call__(self):
        return self.now


whole_seconds = st.integers(0, 100)


@given(whole_seconds, whole_seconds, st.lists(st.tuples(st.sampled_from("abc"), whole_seconds)))
def test_every_moment_belongs_to_one_phase(other_s, wait_s, phases):
    clock = Clock()
    laps = Laps(clock, None)
    clock.now += other_s + wait_s
    laps.arrive(wait_s)
    for phase, seconds in phases:
        clock.now += seconds
        laps.lap(phase)
    expected = {OTHER: other_s, DATA: wait_s}
    for phase, seconds in phases:
        expected[phase] = expected.get(phase, 0) + seconds
    assert laps.seconds == expected
    assert laps.total_s == clock.now - 7.0
    assert laps.device_wait_s() == wait_s


def test_rounding_makes_no_time_negative():
    clock = Clock()
    laps = Laps(clock, None)
    clock.now += 0.3
    laps.arrive(0.1 + 0.2)
    assert laps.seconds[OTHER] == 0.0


def test_without_a_device_there_is_nothing_to_wait_for():
    laps = Laps(Clock(), None)
    laps.lap("a")
    assert laps.is_passed
    laps.wait()
    assert (laps.gpu_seconds(), laps.peaks_mb) == ({}, {})


class Gpu:
    """Marks count up by one; peaks come from a list. Tells of everything it is asked for."""

    def __init__(self, peaks_mb):
        self.peaks_mb, self.asked = iter(peaks_mb), []

    def mark(self):
        self.asked.append("mark")
        return Mark(self.asked.count("mark") - 1)

    def wait(self):
        self.asked.append("wait")

    def take_peak_mb(self):
        return next(self.peaks_mb)


class Mark:
    def __init__(self, number):
        self.number, self.is_waited_for = number, False

    def query(self):
        return self.is_waited_for

    def synchronize(self):
        self.is_waited_for = True

    def elapsed_time(self, end):
        return (10 ** (end.number + 1) - 10 ** (self.number + 1)) * 1000


@pytest.mark.parametrize("sync", [False, True])
def test_a_phase_lies_between_two_marks_of_its_own(sync):
    gpu = Gpu([1.0, 5.0, 2.0])
    laps = Laps(Clock(), gpu, sync)
    laps.arrive(0.0)
    for phase in ("a", "b", "a"):
        laps.lap(phase)
    # Marks 0 and 1 are those of the data, 2 and 3 of the first "a", 4 and 5 of "b", 6 and 7 of the second "a".
    assert not laps.is_passed
    laps.wait()
    assert laps.is_passed
    assert laps.gpu_seconds() == {DATA: 90, "a": 9_000 + 90_000_000, "b": 900_000}
    assert laps.peaks_mb == {"a": 2.0, "b": 5.0}
    lap = ["mark", "wait", "mark"] if sync else ["mark", "mark"]
    assert gpu.asked == ["mark", "mark", "mark", *lap * 3]


@pytest.mark.parametrize(("wait_s", "expected"), [(1000.0, 90.0), (20.0, 20.0), (0.0, 0.0)])
def test_the_device_waits_for_data_while_it_is_idle_and_the_data_is_not_there(wait_s, expected):
    clock = Clock()
    laps = Laps(clock, Gpu([]))
    clock.now += 1000.0
    laps.arrive(wait_s)
    assert laps.device_wait_s() == expected
