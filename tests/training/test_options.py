import os

import pytest
import torch

from trw_pipeline.training.options import check_options, copy_options, create_default_options


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("LOGGING_DIRECTORY", raising=False)
    monkeypatch.delenv("TRW_LOGGING_ROOT", raising=False)


def root_of(options):
    return options["workflow_options"]["logging_directory"]


def test_the_sections_and_values_of_the_reference(tmp_path):
    assert create_default_options(tmp_path, 7, "cpu") == {
        "model_parameters": {"hyperparams": None},
        "training_parameters": {"dropout_probability": 0.5, "num_epochs": 7},
        "workflow_options": {
            "device": torch.device("cpu"),
            "train_split": "train",
            "logging_directory": str(tmp_path),
            "trainer_run": 0,
            "current_logging_directory": None,
        },
        "runtime": {},
    }


def test_fifty_epochs_by_default():
    assert create_default_options()["training_parameters"]["num_epochs"] == 50


def test_the_argument_comes_before_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LOGGING_DIRECTORY", "/elsewhere")
    assert root_of(create_default_options(tmp_path)) == str(tmp_path)


def test_the_documented_variable_comes_before_that_of_the_original(monkeypatch):
    monkeypatch.setenv("TRW_LOGGING_ROOT", "/original")
    assert root_of(create_default_options()) == "/original"
    monkeypatch.setenv("LOGGING_DIRECTORY", "/documented")
    assert root_of(create_default_options()) == "/documented"


def test_else_runs_under_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert root_of(create_default_options()) == os.path.join(os.path.realpath(tmp_path), "runs")


def test_device_is_the_best_there_is():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert create_default_options()["workflow_options"]["device"].type == expected


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (1.5, TypeError), ("3", TypeError), (True, TypeError)])
def test_a_bad_number_of_epochs_is_named(value, error):
    with pytest.raises(error, match=f"num_epochs.*{value}"):
        create_default_options(num_epochs=value)


def test_two_calls_share_nothing():
    first = create_default_options()
    first["runtime"]["note"] = 1
    assert create_default_options()["runtime"] == {}


def test_a_copy_is_independent_at_every_depth_and_shares_values():
    shared = object()
    options = {"runtime": {"deep": {"value": shared}}}
    copied = copy_options(options)
    copied["runtime"]["deep"]["more"] = 1
    assert options == {"runtime": {"deep": {"value": shared}}}
    assert copied["runtime"]["deep"]["value"] is shared


def test_options_that_are_no_mapping_are_refused():
    with pytest.raises(TypeError, match="NoneType"):
        check_options(None)


def test_options_without_a_needed_value_are_refused_with_its_name():
    options = create_default_options()
    del options["workflow_options"]["train_split"]
    with pytest.raises(ValueError, match=r"\['workflow_options'\]\['train_split'\]"):
        check_options(options)
