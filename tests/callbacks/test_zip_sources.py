import logging
import os
import zipfile
from pathlib import Path

import pytest
from toy_samples import batches, fit

from trw_pipeline.callbacks.zip_sources import CallbackZipSources


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "project"
    files = {
        "main.py": "print(1)",
        "net/model.py": "x = 2",
        "net/__pycache__/model.cpython-311.py": "cache",
        ".hidden/secret.py": "no",
        "env/pyvenv.cfg": "",
        "env/lib/library.py": "no",
        "run.sh": "python main.py",
        "weights.pt": "no",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def archive(folder, *arguments, **keywords):
    callback = CallbackZipSources(*arguments, **keywords)
    run, _, _ = fit(folder / "runs", [callback], {"d": {"train": batches()}}, "callbacks_pre_training_fn", 0)
    return run / callback.filename


def content(path):
    with zipfile.ZipFile(path) as zipped:
        assert zipped.testzip() is None
        return {name: zipped.read(name).decode() for name in zipped.namelist()}


def test_sources_are_kept_and_caches_hidden_folders_and_environments_are_not(tmp_path, sources):
    assert content(archive(tmp_path, [sources])) == {
        "project/main.py": "print(1)",
        "project/run.sh": "python main.py",
        "project/net/model.py": "x = 2",
    }


def test_extensions_and_name_can_be_chosen_and_one_folder_needs_no_list(tmp_path, sources):
    path = archive(tmp_path, str(sources), [".pt", ".sh"], "mine.zip")
    assert path.name == "mine.zip"
    assert sorted(content(path)) == ["project/run.sh", "project/weights.pt"]


def test_the_same_sources_give_the_same_bytes(tmp_path, sources):
    first = archive(tmp_path, [sources]).read_bytes()
    for path in sources.rglob("*.py"):
        os.utime(path, (1e9, 1e9))
    assert archive(tmp_path, [sources]).read_bytes() == first
    (sources / "main.py").write_text("print(2)")
    assert archive(tmp_path, [sources]).read_bytes() != first


def test_folders_of_the_same_name_are_kept_apart(tmp_path):
    folders = [tmp_path / parent / "src" for parent in "ab"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "one.py").write_text(folder.parent.name)
    assert content(archive(tmp_path, folders)) == {"src/one.py": "a", "src-2/one.py": "b"}


def test_a_loop_of_links_and_a_link_to_nothing_do_no_harm(tmp_path, sources):
    (sources / "net" / "loop").symlink_to(sources)
    (sources / "nothing.py").symlink_to(sources / "absent.py")
    assert sorted(content(archive(tmp_path, [sources]))) == [
        "project/main.py",
        "project/net/model.py",
        "project/run.sh",
    ]


def test_a_file_that_can_not_be_read_is_left_out_with_a_warning(tmp_path, sources, caplog, monkeypatch):
    read = Path.read_bytes

    def fail(self):  # root may read whatever the mode of a file says
        if self.name == "model.py":
            raise PermissionError(13, "Permission denied", str(self))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", fail)
    with caplog.at_level(logging.WARNING, "trw_pipeline"):
        kept = content(archive(tmp_path, [sources]))
    assert sorted(kept) == ["project/main.py", "project/run.sh"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "model.py is left out of sources.zip: " in caplog.text


def test_the_options_are_logged(tmp_path, sources, caplog):
    with caplog.at_level(logging.INFO, "trw_pipeline.callbacks.zip_sources"):
        archive(tmp_path, [sources], max_width=1)
    text = next(record.message for record in caplog.records if record.message.startswith("options:"))
    assert "'train_split': 'train'" in text
    assert len(text.splitlines()) >= 9, "one a line"


def test_what_is_no_folder_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="folders_to_record must be folders, got"):
        CallbackZipSources([tmp_path / "absent"])
