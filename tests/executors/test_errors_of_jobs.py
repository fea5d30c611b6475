"""Failed jobs: whatever a function raises, the caller learns what, where and for which sample, and can go on."""

from __future__ import annotations

import inspect
import os
import subprocess
import threading
import urllib.error

import numpy as np
import pytest

from trw_pipeline.errors import CodecError, JobError


class TwoArguments(Exception):
    def __init__(self, what, where):
        super().__init__(f"{what} at {where}")


class KeywordOnly(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")


class RaisesWhenMadeAgain(Exception):
    def __init__(self, message):
        {"the first message": None}[message]
        super().__init__("made from a lookup")


def two_arguments():
    return TwoArguments("hole", "tile 7")


def keyword_only():
    return KeywordOnly(code=81)


def called_process_error():
    return subprocess.CalledProcessError(9, ["convert", "scan.dcm"])


def http_error():
    return urllib.error.HTTPError("http://host/scan", 503, "busy now", {}, None)


def raises_when_made_again():
    return RaisesWhenMadeAgain("the first message")


def local_class():
    class Local(ValueError):
        pass

    return Local("only known here")


ODD_ERRORS = {
    two_arguments: "hole at tile 7",
    keyword_only: "code 81",
    called_process_error: "convert",
    http_error: "busy now",
    raises_when_made_again: "made from a lookup",
    local_class: "only known here",
}


def raising(make_error):
    """Returns a function that raises, for 0, what `make_error` makes. Workers import this module to find that."""

    def fail(x):
        if x == 0:
            raise make_error()
        return x

    return fail


@pytest.mark.parametrize("make_error", ODD_ERRORS, ids=lambda function: function.__name__)
def test_every_exception_arrives_with_its_message_and_traceback(make_error, pool_kind, executor_of):
    """ERR-1."""
    executor = executor_of(2, raising(make_error), backend=pool_kind, in_order=True)
    executor.put(0)
    with pytest.raises(JobError) as caught:
        executor.get(timeout=30)
    assert ODD_ERRORS[make_error] in str(caught.value)
    assert "raise make_error()" in str(caught.value)


@pytest.mark.parametrize("make_error", ODD_ERRORS, ids=lambda function: function.__name__)
def test_the_executor_is_usable_after_every_exception(make_error, executor_of):
    executor = executor_of(1, raising(make_error), in_order=True)
    executor.put(0)
    executor.put(1)
    with pytest.raises(JobError):
        executor.get(timeout=30)
    assert executor.get(timeout=30).value == 1


def test_an_exception_that_can_be_made_again_is_the_cause(pool_kind, executor_of):
    def fail(x):
        raise FileNotFoundError(2, "No such file or directory", "scan.nii")

    executor = executor_of(1, fail, backend=pool_kind)
    executor.put(0)
    with pytest.raises(JobError) as caught:
        executor.get(timeout=30)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert caught.value.__cause__.filename == "scan.nii"


def test_an_exception_that_is_no_exception_when_it_is_made_again_is_left_out(executor_of):
    def fail(x):
        class Changeling(Exception):
            def __reduce__(self):
                return str, ("not an exception",)

        raise Changeling("mischief")

    executor = executor_of(1, fail)
    executor.put(0)
    with pytest.raises(JobError, match="mischief") as caught:
        executor.get(timeout=30)
    assert caught.value.__cause__ is None


def test_the_text_names_file_line_causes_and_sample(pool_kind, executor_of):
    """ERR-3."""

    def fail(x):
        try:
            try:
                {}["label"]
            except KeyError as missing:
                raise LookupError("no label in the table") from missing
        except LookupError:
            raise ValueError("sample is unusable")  # noqa: B904 (the context must travel without `from`)

    line = inspect.getsourcelines(fail)[1] + 7
    executor = executor_of(1, fail, backend=pool_kind, name="load")
    executor.put(0, key=(12,), uid="patient-3")
    with pytest.raises(JobError) as caught:
        executor.get(timeout=30)
    text = str(caught.value)
    assert f'{__file__}", line {line}, in fail' in text
    assert "KeyError: 'label'" in text
    assert "LookupError: no label in the table" in text
    assert "ValueError: sample is unusable" in text
    assert text.startswith("job 0, item (12,), sample_uid patient-3 of 'load' failed: ValueError: sample is unusable\n")


def test_our_own_frames_are_left_out_of_the_traceback(pool_kind, executor_of):
    def fail(x):
        raise ValueError("x")

    executor = executor_of(1, fail, backend=pool_kind)
    executor.put(0)
    with pytest.raises(JobError) as caught:
        executor.get(timeout=30)
    assert "trw_pipeline" not in str(caught.value)


def test_the_cause_keeps_its_own_traceback(executor_of):
    def fail(x):
        class Local(Exception):
            pass

        raise Local("deep")

    executor = executor_of(1, fail)
    executor.put(0)
    with pytest.raises(JobError) as caught:
        executor.get(timeout=30)
    assert caught.value.__cause__.__traceback__ is not None


def test_a_key_error_prints_as_several_lines(pool_kind, executor_of):
    """ERR-5."""
    executor = executor_of(1, lambda x: {}[x], backend=pool_kind)
    executor.put("weights")
    with pytest.raises(JobError) as caught:
        executor.get(timeout=30)
    assert "KeyError: 'weights'" in str(caught.value).splitlines()
    assert "\\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_job_that_wants_to_exit_failed(kind, executor_of):
    def leave(x):
        raise kind(3)

    executor = executor_of(1, leave)
    executor.put(0)
    with pytest.raises(JobError, match=kind.__name__):
        executor.get(timeout=30)


# What can not travel


@pytest.mark.parametrize(
    ("make_item", "path"),
    [
        (lambda: {"a": [1, 2, threading.Lock()]}, r"item\['a'\]\[2\]"),
        (lambda: {"a": (i for i in [1])}, r"item\['a'\]"),
        (lambda: {"a": {"file": open(__file__)}}, r"item\['a'\]\['file'\]"),  # noqa: SIM115
    ],
    ids=["lock", "generator", "file"],
)
def test_an_item_that_can_not_be_sent_is_one_error_that_names_the_part(make_item, path, pool_kind, executor_of):
    """PKL-3. In threads and inline an item is copied for the job; what can not be copied can not be sent either."""
    executor = executor_of(1, lambda x: 1, backend=pool_kind, in_order=True)
    item = make_item()
    executor.put(item, uid="s9")
    executor.put({"a": 1})
    with pytest.raises(CodecError, match=rf"job 0, sample_uid s9 .*{path} can not be (pickled|copied)"):
        executor.get(timeout=30)
    assert executor.get(timeout=30).value == 1
    if isinstance(item["a"], dict):
        item["a"]["file"].close()


def test_a_result_that_can_not_be_sent_is_one_error_that_names_job_and_part(executor_of):
    def locked(x):
        import threading

        return {"ok": 1, "bad": [threading.Lock()]} if x == 0 else x

    executor = executor_of(1, locked, in_order=True)
    executor.put(0, key=(5,))
    executor.put(1)
    with pytest.raises(CodecError, match=r"job 0, item \(5,\) of 'locked' failed: .*result\['bad'\]\[0\] can not be"):
        executor.get(timeout=30)
    assert executor.get(timeout=30).value == 1


def test_a_result_that_can_not_be_made_again_here_is_one_error(executor_of):
    def odd(x):
        class Odd:
            def __reduce__(self):
                return int, ("no number",)

        return Odd() if x == 0 else x

    executor = executor_of(1, odd, in_order=True)
    executor.put(0)
    executor.put(1)
    with pytest.raises(CodecError, match="result can not be unpickled: ValueError"):
        executor.get(timeout=30)
    assert executor.get(timeout=30).value == 1


def test_codec_errors_are_skipped_like_others(executor_of):
    executor = executor_of(1, lambda x: 1, on_error="skip")
    executor.put(threading.Lock(), uid="bad")
    executor.put(np.zeros(3), uid="good")
    assert executor.get(timeout=30).uid == "good"
    assert [failure.uid for failure in executor.failures] == ["bad"]


def test_a_function_that_can_not_be_sent_is_refused_when_the_executor_is_made(executor_of):
    class Transform:
        def __init__(self):
            self.lock = threading.Lock()

        def __call__(self, x):
            return x

    with pytest.raises(CodecError, match=r"function_to_run\.functions\[0\]\.lock can not be pickled"):
        executor_of(1, Transform())


def test_a_function_that_becomes_one_that_can_not_be_sent_is_refused_at_reset(executor_of):
    class Transform:
        lock = None

        def __call__(self, x):
            return x

    transform = Transform()
    executor = executor_of(1, transform)
    transform.lock = threading.Lock()
    with pytest.raises(CodecError, match="lock"):
        executor.reset()


# Errors that resist


class Unshowable(Exception):
    def __getattr__(self, name):
        return getattr(self.inner, name)  # which is missing: without end

    def __str__(self):
        raise LookupError("no message")


class ExitsWhenMadeAgain(Exception):
    def __reduce__(self):
        return exit_now, ()


class Exits:
    def __reduce__(self):
        return exit_now, ()


def exit_now():
    raise SystemExit(3)


def odd_syntax_error():
    return SyntaxError("bad line", ("rules.txt", 3, "column 7", "text"))


@pytest.mark.parametrize(
    ("make_error", "text"),
    [(odd_syntax_error, "SyntaxError: bad line"), (Unshowable, "Unshowable (its message can not be shown)")],
)
def test_an_error_that_can_not_be_formatted_arrives_with_kind_and_place(make_error, text, pool_kind, executor_of):
    executor = executor_of(1, raising(make_error), backend=pool_kind, in_order=True, max_retries=0)
    executor.put(0)
    executor.put(1)
    with pytest.raises(JobError) as caught:
        executor.get(timeout=30)
    assert text in str(caught.value)
    assert "in fail" in str(caught.value)
    assert executor.get(timeout=30).value == 1


def test_a_cause_that_exits_when_it_is_made_again_is_left_out(executor_of):
    executor = executor_of(1, raising(ExitsWhenMadeAgain))
    executor.put(0)
    with pytest.raises(JobError, match="ExitsWhenMadeAgain") as caught:
        executor.get(timeout=30)
    assert caught.value.__cause__ is None


def test_a_result_that_exits_when_it_is_made_again_is_one_error(executor_of):
    executor = executor_of(1, lambda x: Exits())
    executor.put(0)
    with pytest.raises(CodecError, match="result can not be unpickled: SystemExit"):
        executor.get(timeout=30)


def nested(levels, innermost=0):
    item = innermost
    for _ in range(levels):
        item = {"a": item}
    return item


def test_an_item_that_is_nested_too_deep_is_one_error(pool_kind, executor_of):
    executor = executor_of(1, lambda x: 1, backend=pool_kind, in_order=True)
    executor.put(nested(2000))
    executor.put(1)
    with pytest.raises(CodecError, match="item can not be"):
        executor.get(timeout=30)
    assert executor.get(timeout=30).value == 1


def test_a_result_that_is_nested_too_deep_is_one_error(executor_of):
    executor = executor_of(1, nested, max_retries=0)
    executor.put(2000)
    with pytest.raises(CodecError, match="result can not be pickled"):
        executor.get(timeout=30)


def test_a_job_that_returns_in_a_forked_copy_is_answered_once(executor_of):
    def fork(x):
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        return os.getpid()

    executor = executor_of(1, fork, in_order=True)
    for _ in range(4):
        executor.put(0)
    assert len({executor.get(timeout=30).value for _ in range(4)}) == 1
    assert not executor.poll()
