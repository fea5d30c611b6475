"""The forms in which the values of a feature come: those of a dict, one of each dict, or a list of one of each."""

from __future__ import annotations

import pytest

from trw_pipeline.batches.collate import collate_dicts, default_collate_list_of_dicts


def dict_form(values):
    return collate_dicts({"x": values}, None)["x"]


def list_form(values):
    return default_collate_list_of_dicts([{"x": value} for value in values])["x"]


def list_form_of_lists(values):
    return default_collate_list_of_dicts([{"x": [value]} for value in values])["x"]


EVERY_FORM = pytest.mark.parametrize("collated", [dict_form, list_form, list_form_of_lists])
