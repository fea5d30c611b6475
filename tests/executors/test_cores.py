"""`nb_workers="auto"`: as many workers as the machine has room for, and a log record that says why."""

from __future__ import annotations

import logging
import os

import numpy as np
import pytest

from trw_pipeline.executors import cores as cores_module
from trw_pipeline.executors.cores import Cores, cores, with_auto
from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.sequences.sequence import SequenceArray

HERE = len(os.sched_getaffinity(0))


@pytest.fixture
def machine(tmp_path):
    """Writes the files of control groups, and returns what is found there."""

    def found(groups, files):
        for name, text in {"proc/self/cgroup": groups, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return cores(tmp_path).quota

    return found


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert cores(tmp_path) == Cores(HERE, None)


def test_version_2_says_it_in_one_file(machine):
    assert machine("0::/\n", {"sys/fs/cgroup/cpu.max": "250000 100000\n"}) == 2.5


def test_version_2_without_limit_says_max(machine):
    assert machine("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}) is None


def test_the_least_of_the_limits_above_counts(machine):
    files = {
        "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
        "sys/fs/cgroup/cpu.max": "800000 100000\n",
    }
    assert machine("0::/a/b\n", files) == 3.0


def test_version_1_says_it_in_two(machine):
    files = {
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
    }
    assert machine("3:memory:/\n2:cpu,cpuacct:/job\n0::/\n", files) == 1.5


def test_version_1_without_limit_says_minus_one(machine):
    files = {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}
    assert machine("1:cpu:/\n", files) is None


def test_in_a_container_the_path_of_the_host_is_not_there(machine):
    files = {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}
    assert machine("1:cpu:/docker/0123\n", files) == 4.0


@pytest.mark.parametrize("nonsense", ["", "nonsense", "0::", "1:cpu", ":::::", "\0"])
def test_nonsense_is_no_limit(machine, nonsense):
    files = {"sys/fs/cgroup/cpu.max": nonsense, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": nonsense}
    assert machine(nonsense, files) is None


@pytest.mark.parametrize(
    ("allowed", "quota", "usable"),
    [(8, None, 8), (8, 2.5, 2), (2, 16.0, 2), (8, 0.5, 1), (1, None, 1)],
)
def test_usable_are_whole_cores(allowed, quota, usable):
    assert Cores(allowed, quota).usable == usable


@pytest.mark.parametrize(("found", "chosen"), [(Cores(8, None), 7), (Cores(8, 3.0), 2), (Cores(1, None), 1)])
def test_auto_leaves_a_core_to_this_process_and_says_why(monkeypatch, caplog, found, chosen):
    monkeypatch.setattr(cores_module, "cores", lambda: found)
    caplog.set_level(logging.INFO, cores_module.__name__)
    assert with_auto("auto", "load") == chosen
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage().startswith(f"'load' has {chosen} workers: usable cores ({found.allowed} in the affinity")


def test_a_number_stays_as_it_is_and_nothing_is_said(caplog):
    caplog.set_level(logging.INFO)
    assert with_auto(3, "load") == 3
    assert caplog.records == []


def test_the_affinity_mask_counts():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert cores().allowed == 1
    finally:
        os.sched_setaffinity(0, before)


def test_executors_and_stages_take_auto(executor_of, monkeypatch, caplog):
    monkeypatch.setattr(cores_module, "cores", lambda: Cores(3, None))
    caplog.set_level(logging.INFO, cores_module.__name__)
    executor = executor_of("auto", abs, backend="thread")
    executor.put(-1)
    assert executor.get(timeout=20).value == 1
    assert executor.statistics()["workers"] == 2
    source = SequenceArray({"x": np.arange(6)})
    with source.map(lambda b: b, nb_workers="auto", backend="thread") as chain:
        assert len(list(chain)) == 6
        assert chain.statistics()["1:<lambda>"]["workers"] == 2
        assert repr(chain).splitlines()[1] == "  .map(<lambda>, 2 thread workers)"
    with source.async_reservoir(6, lambda b: b, 6, nb_workers="auto", backend="thread") as chain:
        assert len(list(chain)) == 6
        assert chain.statistics()["1:<lambda>"]["workers"] == chain.statistics()["1:<lambda>"]["capacity"] == 2
    assert len(caplog.records) == 3


@pytest.mark.parametrize("wrong", ["all", "Auto", "4"])
def test_other_words_are_refused(wrong):
    with pytest.raises(TypeError, match="nb_workers must be an int or 'auto', got"):
        JobExecutor(wrong, abs)
    with pytest.raises(TypeError, match="nb_workers must be an int or 'auto', got"):
        SequenceArray({"x": [1]}).map(abs, nb_workers=wrong)
