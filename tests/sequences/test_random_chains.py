"""Chains of stages that cut, join and deal out samples, whatever the samples are: none is lost, moved or altered."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from random_chains import OF_THE_SPLIT, Chain, chains, kind_of, plain

pytestmark = pytest.mark.slow


def assert_is(items, rows, split):
    """Each item holds those rows of the split, every feature of them, and what is of the whole split."""
    assert [plain(item["sample_uid"]) for item in items] == rows
    values = plain(split)
    for item, numbers in zip(items, rows, strict=True):
        assert item.keys() == split.keys()
        for name, value in item.items():
            expected = values[name] if name in OF_THE_SPLIT else [values[name][number] for number in numbers]
            assert plain(value) == expected, name


@settings(deadline=None, max_examples=300)
@given(chains())
def test_the_items_of_a_chain_hold_the_rows_that_the_model_says(chain: Chain):
    before = copy.deepcopy(plain(chain.split))
    assert_is(list(chain.make()), chain.rows(), chain.split)
    assert plain(chain.split) == before


@settings(deadline=None, max_examples=100)
@given(chains())
def test_a_feature_is_held_in_the_same_way_in_all_items_with_samples(chain: Chain):
    items = [item for item in chain.make() if len(item["sample_uid"])]
    for name in chain.split:
        assert len({str(kind_of(item[name])) for item in items}) <= 1, name


@settings(deadline=None, max_examples=100)
@given(chains())
def test_an_epoch_goes_on_from_every_position_with_the_same_items(chain: Chain):
    sequence, new, rows = chain.make(), chain.make(), chain.rows()
    iterator = iter(sequence)
    for position in range(len(rows) + 1):
        new.load_state_dict(sequence.state_dict())
        assert_is(list(new), rows[position:], chain.split)
        next(iterator, None)


def overwrite(item):
    """Writes into all that an item holds for each sample."""
    for name, value in item.items():
        if name in OF_THE_SPLIT:
            continue
        if isinstance(value, list):
            for element in value:
                if isinstance(element, (list, dict)):
                    element.clear()
                elif isinstance(element, np.ndarray):
                    element[...] = 0
            value.clear()
        else:
            value[...] = torch.zeros(()) if isinstance(value, torch.Tensor) else np.zeros((), value.dtype)


@settings(deadline=None, max_examples=100)
@given(chains().filter(lambda chain: chain.is_copied))
def test_writing_into_an_item_changes_neither_the_split_nor_another_item(chain: Chain):
    before, rows = copy.deepcopy(plain(chain.split)), chain.rows()
    for number, item in enumerate(items := list(chain.make())):
        assert_is([item], [rows[number]], chain.split)
        overwrite(item)
    assert [len(item) for item in items] == [len(chain.split)] * len(rows)
    assert plain(chain.split) == before


@settings(deadline=None, max_examples=100)
@given(chains())
def test_a_length_that_is_known_is_true(chain: Chain):
    sequence = chain.make()
    try:
        length = len(sequence)
    except TypeError:
        return
    assert length == len(chain.rows())
