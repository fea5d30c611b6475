"""Files that are either complete or absent, names that are safe, and run folders that never replace an older one."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_LONGEST_NAME = 110
"""Bytes of a safe name: file systems allow 255 for two of them, a number, a suffix, and what `open_atomic` adds."""


@contextmanager
def open_atomic(path: str | os.PathLike[str]) -> Generator[BinaryIO, None, None]:
    """Open a file to write that appears under its name only when it is complete.

    What is written goes to a temporary file beside the target; leaving the block flushes it, waits until it is on the
    disk, and renames it over the target. A crash at any moment leaves the old file, or none, never half a new one.

    Args:
        path: the target; its folder must exist.

    Yields:
        A binary file, open for writing.

    Raises:
        OSError: the folder is absent or can not be written. When the block raises, its error passes through, the
            target is as it was, and the temporary file is gone.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        # "x": the permissions follow the umask like those of any new file, which a `tempfile` would not give.
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a whole file, atomically as in `open_atomic`."""
    with open_atomic(path) as file:
        file.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole text file in UTF-8, atomically as in `open_atomic`; line ends are written as they are."""
    write_bytes(path, text.encode())


def append_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write to the end of a file, which is made if it is absent, and wait until it is on the disk.

    A crash may leave a part of the data at the end of the file, but changes nothing that was there before.

    Args:
        path: the file; its folder must exist.
        data: what to write.
    """
    with Path(path).open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def safe_filename(string: str) -> str:
    """Make a file name out of any text by leaving out its special characters.

    Letters and digits of any script, space, `.`, `_` and `-` stay. Different texts may give the same name. Of a name of
    more than 110 bytes in UTF-8, as paths that serve as uids have, the beginning stays, and a hash of the whole text.

    Args:
        string: any text.

    Returns:
        The name, without dots and spaces at its ends (so it is never `..` nor a hidden file); `_` if nothing is left.

    Example:
        >>> safe_filename("mnist/train: error?")
        'mnisttrain error'
    """
    name = without_special_characters(string)
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    ending = "-" + hashlib.sha256(string.encode(errors="surrogatepass")).hexdigest()[:8]
    return name.encode()[: _LONGEST_NAME - len(ending)].decode(errors="ignore") + ending


def without_special_characters(string: str) -> str:
    """Do as `safe_filename` does, but leave a long name long."""
    kept = "".join(character for character in string if character.isalnum() or character in " ._-")
    return kept.strip(" .") or "_"


def create_numbered_folder(root: str | os.PathLike[str], prefix: str) -> tuple[Path, int]:
    """Create the folder `<root>/<prefix>_r<N>`, where N is the first number that is free.

    Nothing that exists is touched, and two processes that ask at the same time get two folders.

    Args:
        root: folder of all runs; created if absent.
        prefix: first part of the name; it may name folders (`"study/fold1"`), which are created too.

    Returns:
        The new folder, and its number, counted from 0.

    Raises:
        OSError: the folder can not be created.
    """
    stem = Path(root) / prefix
    stem.parent.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        folder = stem.with_name(f"{stem.name}_r{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder, number


def create_or_recreate_folder(
    path: str | os.PathLike[str], nb_tries: int = 3, wait_time_between_tries: float = 2.0
) -> None:
    """Make an empty folder of this name. **Everything that was in a folder of this name is deleted.**

    For runs there is `create_numbered_folder`, which deletes nothing.

    Args:
        path: the folder; the folders above it are created too.
        nb_tries: how often to try, at least 1. Another program that has a file open, or makes new ones, can be in the
            way for a moment.
        wait_time_between_tries: seconds before another try.

    Raises:
        ValueError: `nb_tries` is less than 1, or the time is negative.
        OSError: the last try failed, or `path` is there and is a file or a link, which are never deleted.
    """
    if nb_tries < 1 or wait_time_between_tries < 0:
        raise ValueError(
            f"nb_tries must be at least 1 and wait_time_between_tries not negative, got {nb_tries} and "
            f"{wait_time_between_tries}"
        )
    folder = Path(path)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise NotADirectoryError(f"only a folder is deleted to be made anew, and {str(folder)!r} is none")
    for nb_left in reversed(range(nb_tries)):
        try:
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
        except OSError:
            if not nb_left:
                raise
            time.sleep(wait_time_between_tries)  # nothing tells us that another program has let go of a file
        else:
            return


def _sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut; a system that can not open folders needs no such call."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
