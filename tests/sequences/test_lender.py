"""`ExecutorLender`: one executor for each open epoch, in the process that made it."""

from __future__ import annotations

import multiprocessing
import os
import warnings

import pytest

from trw_pipeline.executors.job_executor import JobExecutor
from trw_pipeline.sequences.lender import ExecutorLender


def lender():
    return ExecutorLender(lambda: JobExecutor(0, abs), "abs", "inline")


def test_an_executor_given_back_is_lent_again():
    one = lender()
    executor = one.borrow()
    one.give_back(executor)
    assert one.borrow() is executor
    one.close()


def test_two_open_epochs_have_executors_of_their_own():
    one = lender()
    assert one.borrow() is not one.borrow()
    one.close()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_the_executors_of_its_parent_alone():
    one = lender()
    of_parent = one.borrow()

    def in_child(pipe):
        own = one.borrow()  # from now on the lender makes executors in the child
        one.give_back(of_parent)
        one.give_back(own)
        pipe.send(one.borrow() is own)

    receiver, sender = multiprocessing.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = multiprocessing.get_context("fork").Process(target=in_child, args=(sender,))
        child.start()
    assert receiver.recv() is True
    child.join()
    receiver.close()
    sender.close()
    one.close()
