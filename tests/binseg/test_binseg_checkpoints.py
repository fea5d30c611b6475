import math

import pytest
import torch
from toy_binseg import new_model, same_weights, saved

from trw_pipeline import binseg
from trw_pipeline.errors import CheckpointError


class Notes:
    def __init__(self):
        self.saved = []

    def save(self, name, **data):
        self.saved.append((name, data))


def parts(rate=0.1):
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), rate)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def stepped(model, optimizer, scheduler):
    model(torch.ones(1, 1, 2, 2)).sum().backward()
    optimizer.step()
    scheduler.step()


def test_what_was_saved_comes_back(tmp_path):
    one, other = parts(), parts(7.0)
    stepped(*one)
    binseg.Checkpointer(*one, path=tmp_path / "new").save("any_name", epoch=3, note="here")
    assert (tmp_path / "new" / "last_checkpoint").read_text() == "any_name.pth"
    checkpointer = binseg.Checkpointer(*other, path=tmp_path / "new")
    assert checkpointer.has_checkpoint()
    assert checkpointer.load() == {"epoch": 3, "note": "here"}
    assert same_weights(one[0], other[0])
    assert other[1].param_groups[0]["lr"] == 0.05
    assert other[2].state_dict() == one[2].state_dict()
    assert other[1].state_dict()["state"][0]["step"] == 1


def test_a_folder_without_a_checkpoint_is_a_beginning(tmp_path):
    checkpointer = binseg.Checkpointer(new_model(), path=tmp_path)
    assert not checkpointer.has_checkpoint()
    assert checkpointer.load() == {}
    with pytest.raises(FileNotFoundError):
        checkpointer.load(tmp_path / "absent.pth")


def test_a_file_that_torch_alone_wrote_is_read(tmp_path):
    """So are those of bob.ip.binseg."""
    model, other = new_model(), new_model()
    other[0].weight.data.fill_(7)
    torch.save({"model": other.state_dict(), "epoch": 4}, tmp_path / "theirs.pth")
    assert binseg.Checkpointer(model, path=tmp_path).load(tmp_path / "theirs.pth") == {"epoch": 4}
    assert same_weights(model, other)


def test_a_checkpoint_that_does_not_fit_or_is_damaged_says_so(tmp_path):
    binseg.Checkpointer(new_model(), path=tmp_path).save("one")
    with pytest.raises(CheckpointError, match=r"the model of the checkpoint .*one.pth' does not fit"):
        binseg.Checkpointer(torch.nn.Linear(1, 1), path=tmp_path).load()
    whole = (tmp_path / "one.pth").read_bytes()
    (tmp_path / "one.pth").write_bytes(whole[:-200])
    with pytest.raises(CheckpointError, match="damaged"):
        binseg.Checkpointer(new_model(), path=tmp_path).load()


def test_data_is_not_called_like_a_part(tmp_path):
    with pytest.raises(ValueError, match=r"must not be called \['model'\]"):
        binseg.Checkpointer(new_model(), path=tmp_path).save("one", model=3)
    assert list(tmp_path.iterdir()) == []


def test_what_a_kill_left_goes_and_files_of_others_stay(tmp_path):
    left = [tmp_path / f".{name}.0123abcd.tmp" for name in ("model_final_epoch.pth", "last_checkpoint")]
    theirs = tmp_path / ".mine.pth.0123abcd.tmp"
    for path in (*left, theirs):
        path.touch()
    binseg.Checkpointer(new_model(), path=tmp_path).save("model_final_epoch")
    assert not any(path.exists() for path in left)
    assert theirs.exists()


def test_each_epoch_has_the_checkpoints_that_are_due():
    """Ties and NaN are not lower."""
    losses = [0.5, 0.5, math.nan, 0.25, 0.75, None]
    notes, lowest, kinds = Notes(), math.inf, []
    for epoch, loss in enumerate(losses, 1):
        lowest = binseg.checkpointer_process(notes, 2, loss, lowest, {"more": 1}, epoch, len(losses))
        kinds.append([name for name, _ in notes.saved])
        assert all(data == {"more": 1, "epoch": epoch, "max_epoch": 6} for _, data in notes.saved)
        notes.saved.clear()
    assert lowest == 0.25
    low, periodic, final = "model_lowest_valid_loss", "model_periodic_save", "model_final_epoch"
    assert kinds == [[low], [periodic], [], [low, periodic], [], [periodic, final]]


def test_without_period_or_checkpointer_less_or_nothing_is_written():
    notes = Notes()
    assert binseg.checkpointer_process(notes, 0, None, 3.0, {}, 4, 9) == 3.0
    assert notes.saved == []
    assert binseg.checkpointer_process(None, 1, 2.0, 3.0, {}, 9, 9) == 2.0


def test_each_file_is_read_without_running_code(tmp_path):
    binseg.Checkpointer(*parts(), path=tmp_path).save("one", epoch=1)
    assert set(saved(tmp_path, "one")) >= {"model", "optimizer", "scheduler", "epoch"}
