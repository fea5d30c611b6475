"""A model on disk: whole or absent, and an error that says what was wrong."""

from __future__ import annotations

import io
from contextlib import nullcontext

import pytest
from torch import nn

from trw_pipeline.training import saved_model

NEVER = 10**6


class FileThatFails(io.BytesIO):
    """A file whose n-th write raises."""

    def __init__(self, nth_write: int, error: BaseException) -> None:
        super().__init__()
        self.writes_left = nth_write
        self.error = error

    def write(self, data: bytes) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.writes_left -= 1
        if self.writes_left == 0:
            raise self.error
        return super().write(data)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=["ctrl-c", "full"])
def test_what_ends_a_save_at_any_write_is_what_it_raises(error, monkeypatch, tmp_path):
    """torch's own error, that its archive could not be closed, must not hide that the disk is full."""
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(10, 10))
    files: list[FileThatFails] = []
    monkeypatch.setattr(saved_model, "open_atomic", lambda path: nullcontext(files[-1]))
    files.append(FileThatFails(NEVER, error))
    saved_model.save_model(model, None, tmp_path / "model")
    nb_writes = NEVER - files[0].writes_left
    assert nb_writes > 20
    for nth_write in range(1, nb_writes + 1):
        files.append(FileThatFails(nth_write, error))
        with pytest.raises(type(error)) as raised:
            saved_model.save_model(model, None, tmp_path / "model")
        assert raised.value is error
