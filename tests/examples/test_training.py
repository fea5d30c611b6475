"""What the examples share: options that find their way back out of a run folder."""

import json

import pytest

from trw_pipeline.examples.brain import BrainOptions
from trw_pipeline.examples.training import OPTIONS_FILE, check_options, saved_options


def test_a_folder_of_something_else_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"folder of a run of train mnist, got .*absent"):
        saved_options(tmp_path / "absent", "mnist")
    (tmp_path / OPTIONS_FILE).write_text(json.dumps({"example": "brain", "options": {"epochs": 3}}))
    assert saved_options(tmp_path, "brain") == {"epochs": 3}
    with pytest.raises(ValueError, match="run of train mnist, got one of train brain"):
        saved_options(tmp_path, "mnist")


def test_a_run_that_was_killed_before_its_first_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="resume must be a run that can go on: there is no checkpoint"):
        check_options(BrainOptions(resume=tmp_path, output=tmp_path / "new"))
    assert not (tmp_path / "new").exists()
