from dataclasses import replace

import pytest

from benchmarks import bench_callbacks
from benchmarks.bench_callbacks import Stamps, measure
from trw_pipeline.callbacks.defaults import default_per_epoch_callbacks
from trw_pipeline.examples.mnist import make_splits
from trw_pipeline.training.callback import Callback


@pytest.mark.slow
def test_what_a_callback_takes_between_two_epochs_is_measured(monkeypatch):
    clock = [0.0]

    class Takes(Callback):
        def on_split_end(self, run):
            clock[0] += 1.0

        def on_epoch_end(self, run):
            clock[0] += 0.25

    def few(options):
        splits = make_splits(replace(options, nb_workers=0))
        return {name: split.subsample(4) for name, split in splits.items()}

    monkeypatch.setattr(bench_callbacks.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(bench_callbacks, "make_splits", few)
    assert measure(lambda: [Takes()], 3) == {"epoch_s": 2.25, "between_ms": 250.0}


def test_every_default_callback_is_a_contender_and_can_be_made_alone():
    contenders = bench_callbacks.epoch(quick=True).contenders
    kinds = [type(callback) for callback in default_per_epoch_callbacks()]
    assert list(contenders) == ["none", *(kind.__name__.removeprefix("Callback") for kind in kinds), "all defaults"]
    for kind in kinds:
        assert [type(one) for one in bench_callbacks.one_of(kind)] == [kind]


def test_two_epochs_have_no_figure():
    stamps = Stamps()
    stamps.starts, stamps.ends = [0.0, 1.0], [0.5, 1.5]
    with pytest.raises(RuntimeError, match="at least 3 epochs are needed, got 2"):
        stamps.figures()
