"""How the mapped function gets to the workers: whatever it is, once, and without the user's script."""

from __future__ import annotations

import functools

import numpy as np
import psutil
import pytest

from trw_pipeline.executors.protocol import Order, orders_in

HELPERS_OF_MAIN = """
    import collections, dataclasses, enum
    from trw_pipeline.executors.job_executor import JobExecutor

    class Plain:
        pass

    @dataclasses.dataclass
    class Record:
        x: int

    Named = collections.namedtuple("Named", "x")

    class Colour(enum.Enum):
        RED = 1

    def helper(x):
        return x + 1
"""


def closure_over(y):
    return lambda x: x + y


def add(x, y):
    return x + y


def local_callable():
    class Adder:
        def __init__(self, y):
            self.y = y

        def __call__(self, x):
            return x + self.y

        def method(self, x):
            return x + self.y

    return Adder(2)


FUNCTIONS = {
    "lambda": lambda x: x + 2,
    "closure": closure_over(2),
    "partial": functools.partial(add, y=2),
    "callable of a local class": local_callable(),
    "bound method of a local class": local_callable().method,
    "builtin": (2).__add__,
    "list": [lambda x: x + 1, closure_over(1)],
}


@pytest.mark.parametrize("nb_workers", [0, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_kind_of_function_works_everywhere(name, nb_workers, start_method, executor_of):
    """PKL-1."""
    executor = executor_of(nb_workers, FUNCTIONS[name], start_method=start_method)
    for i in range(4):
        executor.put(i)
    assert sorted(executor.get(timeout=30).value for _ in range(4)) == [2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_objects_of_classes_of_the_main_script_keep_their_identity(program, method):
    """PKL-2."""
    body = f"""
    def make(x):
        record = Record(helper(x))
        return {{"plain": [Plain()], "record": (record,), "named": {{"n": Named(x)}}, "colour": [Colour.RED]}}

    if __name__ == "__main__":
        with JobExecutor(1, make, start_method={method!r}) as executor:
            executor.put(1)
            value = executor.get(timeout=30).value
            print(type(value["plain"][0]) is Plain, type(value["record"][0]) is Record, value["record"][0].x)
            print(type(value["named"]["n"]) is Named, value["colour"][0] is Colour.RED)
    """
    assert program(HELPERS_OF_MAIN + body).finish().stdout.split() == ["True", "True", "2", "True", "True"]


def test_items_of_classes_of_the_main_script_arrive_as_such(program):
    body = """
    with JobExecutor(1, lambda x: (type(x) is Record, x.x, x)) as executor:
        executor.put(Record(5))
        same, x, back = executor.get(timeout=30).value
        print(same, x, type(back) is Record)
    """
    assert program(HELPERS_OF_MAIN + body).finish().stdout.split() == ["True", "5", "True"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_script_without_a_main_guard_works_and_runs_once(program, method):
    """PLAT-2."""
    result = program(f"""
        import os
        from trw_pipeline.executors.job_executor import JobExecutor
        print("main script")
        executor = JobExecutor(2, lambda x: 2 * x, start_method={method!r})
        for i in range(6):
            executor.put(i)
        print(sorted(executor.get(timeout=30).value for _ in range(6)))
        executor.close()
        """).finish()
    assert result.stdout.splitlines() == ["main script", "[0, 2, 4, 6, 8, 10]"]
    assert result.stderr == ""


def test_an_executor_made_while_a_module_is_imported_works(program, tmp_path):
    """PLAT-2."""
    (tmp_path / "pipeline_at_import.py").write_text(
        "from trw_pipeline.executors.job_executor import JobExecutor\n"
        "def double(x):\n    return 2 * x\n"
        "with JobExecutor(2, lambda x: 2 * x) as executor:\n"
        "    executor.put(4)\n    RESULT = executor.get(timeout=30).value\n"
    )
    assert program("import pipeline_at_import; print(pipeline_at_import.RESULT)").finish().stdout == "8\n"


def test_no_more_processes_than_workers_and_the_fork_server_are_started(executor_of):
    executor = executor_of(3, lambda x: x, start_method="forkserver")
    for i in range(9):
        executor.put(i)
    for _ in range(9):
        executor.get(timeout=30)
    servers = [c for c in psutil.Process().children() if "multiprocess.forkserver import" in " ".join(c.cmdline())]
    assert len(servers) <= 1
    assert sum(len(server.children(recursive=True)) for server in servers) == 3


def test_a_function_is_sent_once_to_each_worker_and_never_with_a_job(executor_of, monkeypatch):
    """MEM-6."""
    table = np.zeros(1_000_000)
    executor = executor_of(2, lambda x: x + table[x])
    posted = []
    post = executor.pool._post

    def weigh(seat, message):
        if seat.outbox is None:  # not while it is only kept until the worker says hello
            orders = [record.order for record in orders_in(message) if record.order is not Order.LEVELS]
            size = sum(memoryview(frame).nbytes for frame in message)
            posted.extend((order, size / len(orders)) for order in orders)
        post(seat, message)

    monkeypatch.setattr(executor.pool, "_post", weigh)
    for i in range(200):
        executor.put(i)
    for _ in range(200):
        executor.get(timeout=30)
    executor.reset()
    for i in range(100):
        executor.put(i)
    for _ in range(100):
        executor.get(timeout=30)
    functions = [size for order, size in posted if order is Order.FUNCTION]
    jobs = [size for order, size in posted if order is Order.JOB]
    assert len(functions) == 2
    assert min(functions) > table.nbytes
    assert len(jobs) >= 300  # more where some were moved to the other worker
    assert max(jobs) < 200


def test_a_replaced_worker_receives_the_function_as_well(executor_of, tmp_path):
    flag, table = tmp_path / "flag", np.arange(100_000)

    def die_once(x):
        import os

        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), 9)
        return int(table[x])

    executor = executor_of(1, die_once)
    executor.put(77)
    assert executor.get(timeout=30).value == 77


def test_a_function_that_did_not_change_is_not_sent_again(executor_of, tmp_path):
    log = tmp_path / "log"

    class Noted:
        def __setstate__(self, state):
            with log.open("a") as file:
                file.write("x")

        def __getstate__(self):
            return {"log": 1}

        def __call__(self, x):
            return x

    executor = executor_of(1, Noted())
    for _ in range(3):
        executor.put(1)
        executor.get(timeout=30)
        executor.reset()
    assert log.read_text() == "x"
