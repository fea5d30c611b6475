import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trw_pipeline.files import (
    append_bytes,
    create_numbered_folder,
    create_or_recreate_folder,
    open_atomic,
    safe_filename,
    write_bytes,
    write_text,
)


def test_write_text_writes_utf8_and_keeps_line_ends(tmp_path):
    write_text(tmp_path / "a.txt", "é\r\nb\n")
    assert (tmp_path / "a.txt").read_bytes() == b"\xc3\xa9\r\nb\n"


def test_write_bytes_replaces_an_older_file(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"older and longer")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"


def test_append_bytes_makes_a_file_grow(tmp_path):
    for part in (b"one\n", b"two\n"):
        append_bytes(tmp_path / "a.log", part)
    assert (tmp_path / "a.log").read_bytes() == b"one\ntwo\n"
    with pytest.raises(FileNotFoundError):
        append_bytes(tmp_path / "absent" / "a.log", b"")


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


@given(st.text(alphabet="aé病", min_size=111), st.text(alphabet="aé病/", min_size=1, max_size=2))
def test_a_long_name_is_shortened_to_another_one_than_that_of_another_text(text, more):
    name = safe_filename(text)
    assert len(name.encode()) <= 110
    assert safe_filename(name) == name
    assert name != safe_filename(text + more)


def test_of_a_long_name_the_beginning_stays(tmp_path):
    name = safe_filename("patient 7/" + "scan" * 100)
    assert name.startswith("patient 7scanscan")
    write_bytes(tmp_path / f"{name}_{safe_filename('é' * 300)}_12.png", b"")


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


def test_a_folder_is_made_anew_with_those_above_it(tmp_path):
    folder = tmp_path / "a" / "b"
    create_or_recreate_folder(folder)
    (folder / "c").mkdir()
    (folder / "c" / "old.txt").write_text("old")
    (tmp_path / "a" / "beside.txt").write_text("stays")
    create_or_recreate_folder(str(folder))
    assert list(folder.iterdir()) == []
    assert (tmp_path / "a" / "beside.txt").read_text() == "stays"


def test_a_file_or_a_link_is_never_deleted_for_a_folder(tmp_path):
    file, target, link = tmp_path / "file", tmp_path / "target", tmp_path / "link"
    file.write_text("stays")
    target.mkdir()
    (target / "kept.txt").write_text("stays")
    link.symlink_to(target)
    for path in (file, link):
        with pytest.raises(NotADirectoryError, match=path.name):
            create_or_recreate_folder(path)
    assert file.read_text() == (link / "kept.txt").read_text() == "stays"


def test_what_can_not_be_made_is_an_error_after_the_last_try(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotADirectoryError):
        create_or_recreate_folder(tmp_path / "file" / "a", nb_tries=3, wait_time_between_tries=0)


def test_it_is_tried_again_until_what_was_in_the_way_is_gone(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(create_or_recreate_folder, tmp_path / "file" / "a", 10_000, 0.001)
        (tmp_path / "file").unlink()
        made.result(timeout=30)
    assert (tmp_path / "file" / "a").is_dir()


@pytest.mark.parametrize(("nb_tries", "wait"), [(0, 1.0), (1, -1.0)])
def test_tries_and_waits_that_make_no_sense_are_refused(tmp_path, nb_tries, wait):
    with pytest.raises(ValueError, match="nb_tries must be at least 1"):
        create_or_recreate_folder(tmp_path / "a", nb_tries, wait)
