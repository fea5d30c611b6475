"""A sequence in a plain loop: it trains as lists of batches do, whatever else is done with it."""

from __future__ import annotations

import copy
import pickle

import pytest
from toy_loop import BATCH_SIZE, NB_BATCHES, NB_TRAIN, array, expected, train_chain, trained_by_hand


def test_a_plain_loop_trains_as_one_over_lists_does(chains):
    trained_by_hand(*chains).assert_same(expected())


def test_a_plain_loop_may_break_and_begin_again(chains):
    train, _ = chains
    for batch in train:
        first = batch["id"].tolist()
        break
    assert sorted(i for batch in train for i in batch["id"].tolist()) == list(range(NB_TRAIN))
    train.set_epoch(0)
    assert next(iter(train))["id"].tolist() == first


def test_len_is_the_number_of_batches_where_nothing_is_mapped(opened):
    assert len(opened(array(NB_TRAIN, True).batch(BATCH_SIZE).collate())) == NB_BATCHES


def test_an_epoch_that_was_opened_to_see_whether_that_is_possible_does_not_count(opened):
    sequence, twin = opened(train_chain()), opened(train_chain())
    for _ in range(3):
        iter(sequence)
    assert [b["id"].tolist() for b in sequence] == [b["id"].tolist() for b in twin]


def test_a_look_at_iter_does_not_use_up_a_position(opened):
    sequence, twin = opened(train_chain()), opened(train_chain())
    whole = [b["id"].tolist() for b in twin]
    next(iter(sequence))
    sequence.load_state_dict(sequence.state_dict())
    iter(sequence)
    assert [b["id"].tolist() for b in sequence] == whole[1:]


def test_an_epoch_that_is_held_or_whose_number_was_set_counts(opened):
    sequence, twin = opened(train_chain()), opened(train_chain())
    epochs = [[b["id"].tolist() for b in twin] for _ in range(3)]
    held = iter(sequence)
    assert [b["id"].tolist() for b in sequence] == epochs[1]
    assert [b["id"].tolist() for b in held] == epochs[0]
    sequence.set_epoch(1)
    iter(sequence)
    sequence.set_epoch(2)
    assert [b["id"].tolist() for b in sequence] == epochs[2]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda chain: pickle.loads(pickle.dumps(chain))])
def test_a_copy_of_a_chain_goes_on_with_the_next_epoch_by_its_own_workers(chains, opened, copied):
    train, _ = chains
    list(train)
    other = opened(copied(train))
    rest = [b["id"].tolist() for b in train]
    train.close()
    assert [b["id"].tolist() for b in other] == rest
