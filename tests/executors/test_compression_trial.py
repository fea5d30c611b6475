"""Whether compressing pays: a trial that measures it, and decides for the buffers that come."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from toy_buffers import ct_like_volume, noise

from trw_pipeline.executors.compression import (
    Compression,
    Trial,
    decompress,
    load_blosc2,
)


@pytest.fixture(scope="module", autouse=True)
def _blosc2():
    """It takes a second to import, which no single test shall be charged with."""
    load_blosc2()


def clock_taking(*spent_s):
    """Each measurement takes the next of these, then the last of them again and again."""
    times = itertools.chain(spent_s, itertools.repeat(spent_s[-1]))
    return itertools.chain.from_iterable((0.0, s) for s in times).__next__


BLANK = np.zeros(1_000_000, np.uint8)  # as a frame some hundred bytes


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, "give one of link_bytes_per_s and min_ratio, got None and None"),
        ({"link_bytes_per_s": 1e6, "min_ratio": 2}, "give one of .*, got 1000000.0 and 2"),
        ({"link_bytes_per_s": 0}, "link_bytes_per_s must be above 0, got 0"),
        ({"link_bytes_per_s": float("nan")}, "link_bytes_per_s must be above 0, got nan"),
        ({"min_ratio": 1}, "min_ratio must be above 1, got 1"),
    ],
)
def test_a_trial_wants_one_goal(keywords, message):
    with pytest.raises(ValueError, match=message):
        Trial(**keywords)


@pytest.mark.parametrize(("spent_s", "pays"), [(0.5, True), (0.9, True), (0.92, False), (2.0, False)])
def test_time_is_saved_where_sending_all_takes_longer(spent_s, pays):
    """Sending all takes 1 s here; a tenth must be won."""
    trial = Trial(link_bytes_per_s=1e6, clock=clock_taking(spent_s))
    sent = [trial.try_compress(BLANK) for _ in range(4)]
    assert [frame is not None for frame in sent] == [pays] * 4
    assert trial.decisions() == {(1, 2**19): pays}


def test_the_median_of_the_measured_buffers_decides_about_the_next():
    trial = Trial(link_bytes_per_s=1e6, clock=clock_taking(0.5, 9, 0.5))
    assert [trial.try_compress(BLANK) is not None for _ in range(4)] == [True, False, True, True]


def test_it_is_measured_again_now_and_then(monkeypatch):
    monkeypatch.setattr(Trial, "NB_BETWEEN", 5)
    trial = Trial(link_bytes_per_s=1e6, clock=clock_taking(9, 9, 9, 0.5, 0.5, 0.5, 9))
    sent = [trial.try_compress(BLANK) is not None for _ in range(24)]
    assert sent == [False] * 8 + [True] * 8 + [False] * 8


def test_buffers_of_each_item_size_and_size_are_judged_by_themselves():
    trial = Trial(min_ratio=2)
    for _ in range(4):
        assert trial.try_compress(BLANK) is not None
        assert trial.try_compress(noise(100_000)) is None
        assert trial.try_compress(ct_like_volume()) is not None
        assert trial.try_compress(noise(500_000).view(np.float32)) is None
    assert trial.decisions() == {(1, 2**19): True, (1, 2**15): False, (2, 2**19): True, (4, 2**17): False}


def test_memory_is_saved_by_at_least_the_ratio():
    volume = ct_like_volume()
    ratio = volume.nbytes / len(Compression("zstd").compress(volume))
    assert Trial(min_ratio=ratio * 0.99).try_compress(volume) is not None
    assert Trial(min_ratio=ratio * 1.01).try_compress(volume) is None


def test_a_buffer_below_the_ratio_is_left_alone_in_a_class_where_it_pays():
    trial = Trial(min_ratio=2)
    for _ in range(5):
        trial.try_compress(BLANK)
    assert trial.try_compress(noise(BLANK.size)) is None
    assert trial.decisions() == {(1, 2**19): True}


def test_a_slow_link_is_worth_compressing_for():
    """By the real clock. At 1 MB/s the volume takes 0.5 s, and compressing it a few milliseconds."""
    trial = Trial(link_bytes_per_s=1e6)
    frames = [trial.try_compress(ct_like_volume()) for _ in range(4)]
    assert all(decompress(frame) == memoryview(ct_like_volume()).cast("B") for frame in frames)


def test_noise_is_never_worth_compressing():
    trial = Trial(link_bytes_per_s=1)
    assert [trial.try_compress(noise(100_000)) for _ in range(5)] == [None] * 5


def test_over_shared_memory_no_trial_is_made():
    trial = Compression.of("auto")
    assert trial.try_compress(BLANK) is None
    assert trial.decisions() == {}


def test_a_trial_travels_with_what_it_has_found_out():
    trial = Trial(min_ratio=2)
    for _ in range(3):
        trial.try_compress(BLANK)
    assert pickle.loads(pickle.dumps(trial)).decisions() == {(1, 2**19): True}
