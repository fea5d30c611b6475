"""The names, arguments and defaults that are documented, and what a wrong argument is told."""

from __future__ import annotations

import inspect

import pytest

from trw_pipeline.sequences.adaptor_torch import SequenceAdaptorTorch
from trw_pipeline.sequences.sequence import (
    Sequence,
    SequenceArray,
    SequenceAsyncReservoir,
    SequenceBatch,
    SequenceCollate,
    SequenceMap,
    SequenceMaxSamples,
    SequencePrefetch,
    SequenceReBatch,
    SequenceSubBatch,
)

DOCUMENTED = {
    Sequence: ["source_split"],
    SequenceArray: ["split", "sampler", "transforms", "use_advanced_indexing", "sample_uid_name"],
    SequenceMap: [
        "source_split",
        "nb_workers",
        "function_to_run",
        "max_jobs_at_once",
        "worker_post_process_results_fun",
        "queue_timeout",
        "preprocess_fn",
        "collate_fn",
    ],
    SequenceBatch: ["source_split", "batch_size", "discard_batch_not_full", "collate_fn"],
    SequenceReBatch: ["source_split", "batch_size", "discard_batch_not_full", "collate_fn"],
    SequenceCollate: ["source_split", "collate_fn", "device"],
    SequenceAdaptorTorch: ["torch_dataloader", "features"],
    SequenceAsyncReservoir: [
        "source_split",
        "max_reservoir_samples",
        "function_to_run",
        "min_reservoir_samples",
        "nb_workers",
        "max_jobs_at_once",
        "reservoir_sampler",
        "collate_fn",
        "maximum_number_of_samples_per_epoch",
    ],
    Sequence.collate: ["self", "collate_fn", "device"],
    Sequence.map: [
        "self",
        "function_to_run",
        "nb_workers",
        "max_jobs_at_once",
        "worker_post_process_results_fun",
        "queue_timeout",
        "preprocess_fn",
        "collate_fn",
    ],
    Sequence.batch: ["self", "batch_size", "discard_batch_not_full", "collate_fn"],
    Sequence.rebatch: ["self", "batch_size", "discard_batch_not_full", "collate_fn"],
    Sequence.async_reservoir: [
        "self",
        "max_reservoir_samples",
        "function_to_run",
        "min_reservoir_samples",
        "nb_workers",
        "max_jobs_at_once",
        "reservoir_sampler",
        "collate_fn",
        "maximum_number_of_samples_per_epoch",
    ],
    Sequence.subsample: ["self", "nb_samples"],
    Sequence.subsample_uids: ["self", "uids", "uids_name", "new_sampler"],
    Sequence.next_item: ["self", "blocking"],
    SequenceArray.get: ["split", "nb_samples", "indices", "transforms", "use_advanced_indexing"],
}
DOCUMENTED_METHODS = {
    Sequence: [
        "__iter__",
        "__next__",
        "next_item",
        "fill_queue",
        "fill_queue_all_sequences",
        "has_background_jobs",
        "has_background_jobs_previous_sequences",
    ],
    SequenceArray: ["initializer", "get", "get_next"],
    SequenceMap: ["initializer", "fill_queue", "close"],
    SequenceAsyncReservoir: ["initializer", "fill_queue", "close", "reservoir_size"],
    SequenceAdaptorTorch: ["__len__"],
}
DOCUMENTED_DEFAULTS = {
    (Sequence.map, "nb_workers"): 0,
    (Sequence.map, "max_jobs_at_once"): None,
    (Sequence.map, "queue_timeout"): 0.1,
    (Sequence.batch, "discard_batch_not_full"): False,
    (Sequence.rebatch, "discard_batch_not_full"): False,
    (Sequence.collate, "device"): None,
    (Sequence.async_reservoir, "min_reservoir_samples"): 1,
    (Sequence.async_reservoir, "nb_workers"): 1,
    (Sequence.async_reservoir, "max_jobs_at_once"): None,
    (Sequence.async_reservoir, "maximum_number_of_samples_per_epoch"): None,
    (SequenceArray, "transforms"): None,
    (SequenceArray, "use_advanced_indexing"): True,
    (SequenceArray, "sample_uid_name"): "sample_uid",
    (SequenceAdaptorTorch, "features"): None,
}


def same(batch):
    return batch


def array():
    return SequenceArray({"x": [1, 2, 3]})


@pytest.mark.parametrize(("documented", "names"), DOCUMENTED.items(), ids=lambda v: getattr(v, "__qualname__", ""))
def test_documented_arguments_come_first_and_in_order(documented, names):
    parameters = inspect.signature(documented).parameters.values()
    positional = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert positional == names


@pytest.mark.parametrize(("documented", "default"), DOCUMENTED_DEFAULTS.items(), ids=lambda v: str(v))
def test_documented_defaults_are_kept(documented, default):
    function, name = documented
    assert inspect.signature(function).parameters[name].default == default


@pytest.mark.parametrize(("kind", "names"), DOCUMENTED_METHODS.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_documented_methods_are_there(kind, names):
    assert [name for name in names if not callable(getattr(kind, name, None))] == []


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        (lambda s: s.map(same), SequenceMap),
        (lambda s: s.batch(2), SequenceBatch),
        (lambda s: s.rebatch(2), SequenceReBatch),
        (lambda s: s.sub_batch(2), SequenceSubBatch),
        (lambda s: s.max_samples(2), SequenceMaxSamples),
        (lambda s: s.collate(), SequenceCollate),
        (lambda s: s.prefetch(2), SequencePrefetch),
        (lambda s: s.async_reservoir(2, same), SequenceAsyncReservoir),
    ],
)
def test_a_verb_makes_its_recipe_over_the_sequence(verb, kind):
    source = array()
    made = verb(source)
    assert type(made) is kind
    assert made.source_split is source


@pytest.mark.parametrize(
    "make",
    [
        lambda: SequenceMap([1, 2], 0, same),
        lambda: SequenceBatch([1, 2], 2),
        lambda: SequenceReBatch([1, 2], 2),
        lambda: SequenceSubBatch([1, 2], 2),
        lambda: SequenceMaxSamples([1, 2], 2),
        lambda: SequenceCollate([1, 2]),
        lambda: SequencePrefetch([1, 2], 2),
        lambda: SequenceAsyncReservoir([1, 2], 2, same),
    ],
)
def test_a_source_that_is_no_sequence_is_refused(make):
    with pytest.raises(TypeError, match="source_split must be a Sequence, got list"):
        make()


@pytest.mark.parametrize("verb", ["batch", "rebatch", "sub_batch", "max_samples", "prefetch"])
@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError)])
def test_a_size_must_be_an_int_of_at_least_one(verb, size, error):
    with pytest.raises(error, match=r"(batch_size|max_samples|nb_batches) must be"):
        getattr(array(), verb)(size)
