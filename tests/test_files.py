import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trw_pipeline.files import create_numbered_folder, open_atomic, safe_filename, write_bytes, write_text


def test_write_text_writes_utf8_and_keeps_line_ends(tmp_path):
    write_text(tmp_path / "a.txt", "é\r\nb\n")
    assert (tmp_path / "a.txt").read_bytes() == b"\xc3\xa9\r\nb\n"


def test_write_bytes_replaces_an_older_file(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"older and longer")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_write_that_fails_leaves_the_older_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"older")

    def interrupted():
        with open_atomic(path) as file:
            file.write(b"half of the ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"a.bin": b"older"}


def test_the_target_is_untouched_while_it_is_written(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"older")
    with open_atomic(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"older"


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    write_bytes(tmp_path / "atomic", b"")
    (tmp_path / "plain").write_bytes(b"")
    assert os.stat(tmp_path / "atomic").st_mode == os.stat(tmp_path / "plain").st_mode


def test_a_missing_folder_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_bytes(tmp_path / "absent" / "a.bin", b"")


@pytest.mark.parametrize(
    ("text", "name"),
    [("a/b:c*?.png", "abc.png"), ("classification error", "classification error"), ("..", "_"), ("", "_"), (".x", "x")],
)
def test_safe_filename_leaves_out_special_characters(text, name):
    assert safe_filename(text) == name


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
def test_safe_filename_is_a_name_in_one_folder(text):
    name = safe_filename(text)
    assert name not in ("", ".", "..")
    assert "/" not in name
    assert "\0" not in name
    assert safe_filename(name) == name


def test_run_folders_are_numbered_and_the_first_free_number_is_taken(tmp_path):
    (tmp_path / "x_r1").mkdir()
    assert [create_numbered_folder(tmp_path, "x") for _ in range(3)] == [
        (tmp_path / "x_r0", 0),
        (tmp_path / "x_r2", 2),
        (tmp_path / "x_r3", 3),
    ]


def test_a_prefix_may_name_folders(tmp_path):
    folder, number = create_numbered_folder(tmp_path / "root", "study/fold1")
    assert (folder, number) == (tmp_path / "root" / "study" / "fold1_r0", 0)
    assert folder.is_dir()


def test_two_that_ask_at_once_get_two_folders(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: create_numbered_folder(tmp_path, "x"), range(40)))
    assert {number for _, number in folders} == set(range(40))
