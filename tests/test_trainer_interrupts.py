"""Ctrl-C in a training that workers feed: one traceback, nothing left, and what was written before can be read."""

from __future__ import annotations

import csv
import random
import signal
from pathlib import Path

from patience import patience

from trw_pipeline.training.saved_model import load_model

TRAINING = """
    import sys
    import numpy as np
    from torch import nn
    sys.path.insert(0, {tests!r})
    from toy_trainer import Net, sgd, trainer
    from trw_pipeline.callbacks.save_last_model import CallbackSaveLastModel
    from trw_pipeline.callbacks.train_log import CallbackTrainLog
    from trw_pipeline.sequences.sequence import SequenceArray
    from trw_pipeline.training.callback import Callback
    from trw_pipeline.training.options import create_default_options

    class Says(Callback):
        def on_fit_start(self, run):
            print("folder", run.log_dir, flush=True)

        def on_epoch_start(self, run):
            print("epoch", run.epoch, flush=True)

        def on_split_start(self, run):
            print("training" if run.training else "evaluating", flush=True)

        def on_epoch_end(self, run):
            print("saving", flush=True)

    def load(batch, rng):
        return {{"x": rng.random((1, 1000), np.float32), "truth": batch["truth"]}}

    def datasets():
        split = SequenceArray({{"truth": np.arange(60)}}).map(load, nb_workers=1).batch(10).collate()
        return {{"d": {{"train": split, "valid": split}}}}

    def model(options):
        net = Net()
        net.inner = nn.Linear(1000, 1000)  # 4 MB, which take a moment to save
        return net

    print("begin", flush=True)
    callbacks = [Says(), CallbackTrainLog(), CallbackSaveLastModel()]
    trainer(*callbacks).fit(create_default_options("runs", 1000, "cpu"), datasets, model, sgd)
"""


def test_ctrl_c_at_any_time_of_a_training_leaves_a_log_and_a_model_that_can_be_read(programs_ended_by, tmp_path):
    """STOP-3: while workers start, in training, in evaluation, and while log and model are written."""
    generator = random.Random(0)
    words = ["begin", "training", "evaluating", "saving"]
    moments = [(word, generator.uniform(0, 0.6 if word == "begin" else 0.03)) for word in words]
    source = TRAINING.format(tests=str(Path(__file__).parent))
    for ended in programs_ended_by(source, signal.SIGINT, moments, to_group=True):
        assert ended.code == -signal.SIGINT
        assert ended.errors.count("Traceback") == 1, ended.errors
        assert ended.errors.rstrip().endswith("KeyboardInterrupt")
        assert ended.took_s < 5.0 * patience()
        said = [line.split() for line in ended.said.splitlines()]
        nb_ended = max((int(line[1]) for line in said if line[:1] == ["epoch"]), default=0)
        for folder in (tmp_path / line[1] for line in said if line[:1] == ["folder"]):
            check_files(folder, nb_ended)


def check_files(folder: Path, nb_ended: int) -> None:
    """Log and model are those of the last epoch that ended, or of the one that was being written."""
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["last.model", "last.model.result", "trainer.txt", "trainlog.csv"] or nb_ended == 0
    if "trainlog.csv" in files:
        header, *rows = csv.reader((folder / "trainlog.csv").read_text().splitlines())
        assert {len(row) for row in rows} == {len(header)}
        assert [row[0] for row in rows] == [str(i) for i in range(len(rows))]
        assert len(rows) in (nb_ended, nb_ended + 1)
    if "last.model" in files:
        model, result = load_model(folder / "last.model", with_result=True)
        assert model.inner.weight.isfinite().all()
        assert len(result["history"]) in (nb_ended, nb_ended + 1)
