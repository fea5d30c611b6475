"""The folder of a run, its log, and the models on disk."""

import logging
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from toy_trainer import Net, broken, datasets, fitting_in, sgd, trainer

from trw_pipeline.callbacks.defaults import default_per_epoch_callbacks
from trw_pipeline.callbacks.progress_bar import CallbackProgressBar
from trw_pipeline.callbacks.train_log import CallbackTrainLog
from trw_pipeline.trainer import Trainer
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.options import create_default_options


@pytest.fixture
def fit(tmp_path):
    return fitting_in(tmp_path)


def test_every_run_has_a_new_folder_and_nothing_in_an_older_one_changes(fit, tmp_path):
    """LOG-3, LOG-7."""
    fit(trainer(CallbackTrainLog()), run_prefix="mine")
    older = tmp_path / "mine_r0"
    (older / "notes.txt").write_text("keep")
    (older / "foreign.pt").write_bytes(b"keep too")
    before = {path: path.read_bytes() for path in older.iterdir()}
    _, result = fit(trainer(CallbackTrainLog()), run_prefix="mine")
    assert {path: path.read_bytes() for path in older.iterdir()} == before
    workflow = result["options"]["workflow_options"]
    assert (workflow["trainer_run"], workflow["current_logging_directory"]) == (1, str(tmp_path / "mine_r1"))


def test_the_options_of_the_caller_are_not_modified(tmp_path):
    options = create_default_options(tmp_path, 1, "cpu")
    options["runtime"]["deep"] = {"a": 1}

    class Edit(Callback):
        def on_fit_start(self, run):
            run.options["runtime"]["deep"]["a"] = 2

    before = {section: dict(values) for section, values in options.items()}
    _, result = trainer(Edit()).fit(options, datasets, lambda options: Net(), sgd)
    assert options == before
    assert options["runtime"]["deep"] == {"a": 1}
    assert result["options"]["runtime"]["deep"] == {"a": 2}


@contextmanager
def unconfigured_logging():
    """Logging as in a program that has not configured it, which pytest always does."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = handlers


def test_trainer_txt_has_what_the_package_logs(fit, tmp_path):
    class Log(Callback):
        def on_fit_end(self, run):
            logging.getLogger("trw_pipeline.anything").info("told by a callback")

    with unconfigured_logging():
        fit(trainer(Log()))
    text = (tmp_path / "default_r0" / "trainer.txt").read_text()
    assert "INFO trw_pipeline.anything: told by a callback" in text


def test_where_logging_is_configured_its_level_decides(fit, tmp_path):
    class Log(Callback):
        def on_fit_end(self, run):
            logging.getLogger("trw_pipeline.anything").info("told quietly")
            logging.getLogger("trw_pipeline.anything").warning("told aloud")

    fit(trainer(Log()))
    text = (tmp_path / "default_r0" / "trainer.txt").read_text()
    assert "told aloud" in text
    assert "told quietly" not in text


def logger_state():
    logger = logging.getLogger("trw_pipeline")
    return logger.level, list(logger.handlers)


def test_the_logger_is_as_it_was_after_a_training(fit):
    before = logger_state()
    with unconfigured_logging():
        fit(trainer())
    assert logger_state() == before


def test_the_logger_is_as_it_was_after_a_training_that_failed(fit):
    before = logger_state()
    with unconfigured_logging(), pytest.raises(OSError, match="disk"):
        fit(trainer(broken(OSError("disk"))))
    assert logger_state() == before


def test_trainer_txt_tells_of_the_error(fit, tmp_path):
    with unconfigured_logging(), pytest.raises(OSError, match="disk full"):
        fit(trainer(broken(OSError("disk full"))))
    assert "OSError: disk full" in (tmp_path / "default_r0" / "trainer.txt").read_text()


@pytest.mark.slow
def test_nothing_is_printed(fit, capsys):
    fit(Trainer(callbacks_per_epoch_fn=lambda: [*default_per_epoch_callbacks(), CallbackProgressBar()]), num_epochs=1)
    assert capsys.readouterr() == ("", "")


# Models on disk


def test_a_model_and_its_result_are_saved_and_loaded(fit, tmp_path):
    model, result = fit(trainer())
    Trainer.save_model(model, result, tmp_path / "saved.model")
    loaded, its_result = Trainer.load_model(str(tmp_path / "saved.model"), with_result=True, device="cpu")
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
    assert its_result["history"] == result["history"]
    assert its_result["options"] == result["options"]
    mine, theirs = result["outputs"]["d"]["valid"]["y"], its_result["outputs"]["d"]["valid"]["y"]
    assert sorted(theirs) == sorted(set(mine) - {"output_ref"})
    assert np.array_equal(mine["output_raw"], theirs["output_raw"])


def test_saving_does_not_change_the_result(fit, tmp_path):
    model, result = fit(trainer())
    Trainer.save_model(model, result, tmp_path / "saved.model")
    assert "output_ref" in result["outputs"]["d"]["valid"]["y"]


def test_a_model_may_have_no_result(fit, tmp_path):
    path = tmp_path / "saved.model"
    Trainer.save_model(Net(), {"history": []}, path)
    Trainer.save_model(Net(), None, path)
    assert Trainer.load_model(path)[1] is None
    with pytest.raises(FileNotFoundError):
        Trainer.load_model(path, with_result=True)


def test_loading_a_result_leaves_it_as_it_is(tmp_path):
    path = tmp_path / "saved.model"
    Trainer.save_model(Net(), {"history": [1]}, path)
    assert [Trainer.load_model(path, with_result=True)[1] for _ in range(2)] == [{"history": [1]}] * 2


class Unpicklable(Net):
    def __reduce__(self):
        raise TypeError("not to be pickled")


def test_a_model_that_can_not_be_saved_leaves_the_older_one(tmp_path):
    path = tmp_path / "saved.model"
    Trainer.save_model(Net(), None, path)
    before = path.read_bytes()
    with pytest.raises(TypeError, match="not to be pickled"):
        Trainer.save_model(Unpicklable(), None, path)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"saved.model": before}


def test_a_file_that_holds_no_module_is_refused(tmp_path):
    torch.save({"weights": 1}, tmp_path / "a.model")
    with pytest.raises(TypeError, match=r"a\.model.*dict"):
        Trainer.load_model(tmp_path / "a.model")
