import io
import sys
import threading

import pytest
import torch
from rich.console import Console
from torch import nn
from toy_trainer import fitting_in, trainer

from trw_pipeline.callbacks.progress_bar import CallbackProgressBar
from trw_pipeline.training.callback import Callback, create_hook_table
from trw_pipeline.training.run import Run


class Terminal(io.StringIO):
    def isatty(self):
        return True


def new_run(callback):
    hooks = create_hook_table(per_epoch=[callback])
    return Run(nn.Linear(1, 1), torch.device("cpu"), hooks=hooks, epochs=2, dataset="d", split="train")


def shown(callback):
    """(completed, total) of the bar at work."""
    (task,) = callback._progress.tasks
    return task.completed, task.total


def start_split(run, num_batches):
    run.num_batches, run.batch_index = num_batches, 0
    run.fire("on_split_start")


def end_batches(run, count):
    for _ in range(count):
        run.fire("on_batch_end")
        run.batch_index += 1


@pytest.fixture
def bar():
    """A callback on a terminal, with the terminal; whatever it does to the standard streams is undone."""
    streams = sys.stdout, sys.stderr
    terminal = Terminal()
    callback = CallbackProgressBar(console=Console(file=terminal, force_terminal=True, width=100, height=20))
    yield callback, terminal
    callback._stop()
    assert (sys.stdout, sys.stderr) == streams


def test_it_moves_by_one_a_batch(bar):
    callback, _ = bar
    run = new_run(callback)
    run.fire("on_fit_start")
    start_split(run, 5)
    end_batches(run, 2)
    assert shown(callback) == (2, 5)


def test_a_split_of_unknown_length_has_the_length_of_the_last_time(bar):
    callback, _ = bar
    run = new_run(callback)
    run.fire("on_fit_start")
    start_split(run, None)
    end_batches(run, 3)
    assert shown(callback) == (3, None)
    run.fire("on_split_end")
    start_split(run, None)
    assert shown(callback) == (0, 3)


def test_it_names_epoch_dataset_and_split(bar):
    callback, terminal = bar
    run = new_run(callback)
    run.fire("on_fit_start")
    start_split(run, 5)
    assert "epoch 0 d/train" in terminal.getvalue()


def test_the_final_evaluation_is_named_also_where_the_training_was_stopped_early(bar, tmp_path):
    class Stops(Callback):
        def on_epoch_end(self, run):
            run.stop = True

    callback, terminal = bar
    fitting_in(tmp_path)(trainer(callback, Stops()), num_epochs=5)
    text = terminal.getvalue()
    assert "epoch 0 d/train" in text
    assert "final evaluation d/train" in text
    assert "epoch 1" not in text


@pytest.mark.parametrize("end", ["on_fit_end", "on_exception"])
def test_however_the_training_ends_the_terminal_is_clean(bar, end):
    callback, terminal = bar
    threads = threading.active_count()
    run = new_run(callback)
    run.fire("on_fit_start")
    start_split(run, 5)
    end_batches(run, 1)
    run.fire(end)
    text = terminal.getvalue()
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")  # the cursor is shown again
    assert text.endswith("\x1b[2K")  # and the last thing done is to erase the line of the bar
    assert threading.active_count() == threads


def test_elsewhere_it_is_silent():
    output = io.StringIO()
    callback = CallbackProgressBar(console=Console(file=output))
    run = new_run(callback)
    for hook in ("on_fit_start", "on_split_start", "on_batch_end", "on_split_end", "on_fit_end"):
        run.fire(hook)
    assert output.getvalue() == ""


def test_it_stands_around_all_other_callbacks():
    assert CallbackProgressBar.outer


def test_what_is_printed_to_a_file_stays_out_of_the_terminal(bar, capsys):
    callback, terminal = bar
    run = new_run(callback)
    run.fire("on_fit_start")
    sys.stdout.write("for the file\n")
    run.fire("on_fit_end")
    assert "for the file" not in terminal.getvalue()
    assert capsys.readouterr().out == "for the file\n"
