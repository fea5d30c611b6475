import errno

import pytest
import torch
from torch import nn

from trw_pipeline.callbacks import save_last_model
from trw_pipeline.callbacks.save_last_model import CallbackSaveLastModel
from trw_pipeline.training.options import create_default_options
from trw_pipeline.training.saved_model import load_model


def save(folder, *arguments, model=None):
    options = create_default_options(folder)
    options["workflow_options"]["current_logging_directory"] = str(folder)
    model = nn.Linear(2, 1) if model is None else model
    outputs = {"d": {"s": {"y": {"loss": 0.5, "output_ref": "a head"}}}}
    CallbackSaveLastModel(*arguments)(options, [{"a": 1}], model, {}, outputs, {}, {"infos": 2}, [])
    return model, options


def test_model_and_result_are_in_the_run_folder(tmp_path):
    model, options = save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.model", "last.model.result"]
    loaded, result = load_model(tmp_path / "last.model", with_result=True)
    assert torch.equal(loaded.weight, model.weight)
    assert result == {
        "history": [{"a": 1}],
        "options": options,
        "outputs": {"d": {"s": {"y": {"loss": 0.5}}}},
        "datasets_infos": {"infos": 2},
    }


def test_the_name_can_be_chosen(tmp_path):
    save(tmp_path, "final")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["final.model", "final.model.result"]


def model_with_a_lambda():
    model = nn.Linear(2, 1)
    model.activation = lambda x: x
    return model


def model_with_weight_norm():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 1)))


@pytest.mark.parametrize("create", [model_with_a_lambda, model_with_weight_norm])
def test_of_a_model_that_can_not_be_pickled_there_are_the_weights_and_a_warning(create, tmp_path, caplog):
    model, _ = save(tmp_path, model=create())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "last.model is not written" in caplog.text
    assert not (tmp_path / "last.model").exists()
    weights = torch.load(tmp_path / "last.weights", weights_only=True)
    assert list(weights) == list(model.state_dict())
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(save_last_model, "save_model", full)
    with pytest.raises(OSError, match="full"):
        save(tmp_path)
