import pytest

from trw_pipeline.training.default_names import find_default_dataset_and_split_names

DATASETS = {"a": {"train": []}, "b": {"train": [], "valid": [], "test": []}, "c": {"test": []}}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ("a", "train")),
        ({"train_split_name": "train"}, ("b", "valid")),
        ({"default_dataset_name": "b"}, ("b", "train")),
        ({"default_dataset_name": "c", "train_split_name": "train"}, ("c", "test")),
        ({"default_split_name": "test"}, ("b", "test")),
        ({"default_dataset_name": "c", "default_split_name": "test"}, ("c", "test")),
        ({"default_split_name": "test", "train_split_name": "train"}, ("b", "test")),
    ],
)
def test_the_first_that_fits_is_chosen(arguments, expected):
    assert find_default_dataset_and_split_names(DATASETS, **arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"default_dataset_name": "d"}, r"'d' must be one of \['a', 'b', 'c'\]"),
        ({"default_dataset_name": "a", "default_split_name": "test"}, r"no split 'test'.*\{'a': \['train'\]\}"),
        ({"default_split_name": "other"}, "no split 'other'"),
        ({"default_dataset_name": "a", "train_split_name": "train"}, "no split to choose"),
        ({"default_split_name": "train", "train_split_name": "train"}, "must not be the one that is trained on"),
    ],
)
def test_what_is_absent_is_an_error(arguments, found):
    with pytest.raises(ValueError, match=found):
        find_default_dataset_and_split_names(DATASETS, **arguments)


def test_without_datasets_there_is_nothing_to_choose():
    with pytest.raises(ValueError, match="no split to choose"):
        find_default_dataset_and_split_names({})
