"""What can not travel is one error that names it by its path, before anything is sent."""

from __future__ import annotations

import io
import threading
import types

import pytest
from codec_trips import by_pickle

from trw_pipeline.errors import CodecError
from trw_pipeline.executors.pickle_codec import PickleCodec
from trw_pipeline.executors.private_copy import private_copy


def open_file(tmp_path):
    (tmp_path / "text").write_text("x")
    return (tmp_path / "text").open()


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        ({"a": [1, 2, threading.Lock()]}, r"item\['a'\]\[2\]"),
        ({"a": {"b": (i for i in [])}}, r"item\['a'\]\['b'\]"),
        ((1, [types.SimpleNamespace(lock=threading.Lock())]), r"item\[1\]\[0\]\.lock"),
        (threading.Lock(), "item"),
    ],
)
def test_what_can_not_be_pickled_is_named_by_its_path(obj, path):
    with pytest.raises(CodecError, match=rf"^{path} can not be pickled: TypeError"):
        PickleCodec("item").encode(obj)


def test_an_open_file_is_refused(tmp_path):
    with open_file(tmp_path) as file, pytest.raises(CodecError, match=r"item\['f'\] .* open file"):
        PickleCodec("item").encode({"f": file})


def test_an_open_binary_file_is_refused(tmp_path):
    open_file(tmp_path).close()
    with (tmp_path / "text").open("rb") as file, pytest.raises(CodecError, match=r"item\['f'\]"):
        PickleCodec("item").encode({"f": file})


def test_a_file_in_memory_travels():
    assert by_pickle(io.StringIO("abc")).read() == "abc"


def test_a_part_that_contains_itself_is_named_too():
    ring = [1]
    ring += [ring, threading.Lock()]
    with pytest.raises(CodecError, match=r"^item\[2\] "):
        PickleCodec("item").encode(ring)


def test_a_pickling_hook_that_raises_is_named():
    class Stubborn:
        def __reduce__(self):
            raise KeyError("not me")

    with pytest.raises(CodecError, match=r"^result\['s'\] can not be pickled: KeyError: 'not me'"):
        PickleCodec("result").encode({"s": Stubborn()})


def test_what_can_not_be_made_again_is_an_error_here():
    class Once:
        def __reduce__(self):
            return int, ("no number",)

    codec = PickleCodec("result")
    frames = codec.encode(Once())
    with pytest.raises(CodecError, match="result can not be unpickled: ValueError"):
        codec.decode(frames)


class Unshowable:
    def __repr__(self):
        raise LookupError("no text")


def test_the_part_that_can_not_be_pickled_is_named_beside_a_key_that_can_not_be_shown():
    with pytest.raises(CodecError, match=r"item\['a'\] can not be pickled"):
        PickleCodec("item").encode({Unshowable(): 1, "a": threading.Lock()})


def test_an_item_nested_too_deep_to_be_searched_is_one_error():
    item = threading.Lock()
    for _ in range(600):
        item = {"a": item}
    with pytest.raises(CodecError, match="can not be pickled"):
        PickleCodec("item").encode(item)


def test_an_object_that_wants_to_exit_is_one_error():
    class Exits:
        def __reduce__(self):
            raise SystemExit(3)

    with pytest.raises(CodecError, match=r"item\[0\] can not be pickled: SystemExit: 3"):
        PickleCodec("item").encode([Exits()])


def test_a_key_that_can_not_be_shown_does_not_keep_an_item_from_being_copied():
    key = Unshowable()
    assert private_copy({key: 1}) == {key: 1}
