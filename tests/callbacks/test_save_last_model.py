import torch
from torch import nn

from trw_pipeline.callbacks.save_last_model import CallbackSaveLastModel
from trw_pipeline.training.options import create_default_options
from trw_pipeline.training.saved_model import load_model


def save(folder, *arguments):
    options = create_default_options(folder)
    options["workflow_options"]["current_logging_directory"] = str(folder)
    model = nn.Linear(2, 1)
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
