"""A split that is read again beside a training is as if nobody had read it."""

import logging
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from toy_samples import Says, batches, chain, fit, random_states

from trw_pipeline.callbacks.explain_decision import CallbackExplainDecision
from trw_pipeline.callbacks.learning_rate_finder import CallbackLearningRateFinder
from trw_pipeline.callbacks.second_look import SecondLook, every_split, nb_samples_of, shown
from trw_pipeline.callbacks.tensorboard import CallbackTensorboardEmbedding, CallbackTensorboardRecordModel
from trw_pipeline.outputs.embedding import OutputEmbedding
from trw_pipeline.sequences.adaptor_torch import SequenceAdaptorTorch
from trw_pipeline.sequences.sequence import SequenceArray, SequenceIterable
from trw_pipeline.training.class_names import class_names_of
from trw_pipeline.training.looking import can_be_read_again, first_batch
from trw_pipeline.training.options import create_default_options


def uids(split):
    return [uid for batch in split for uid in torch.as_tensor(np.asarray(batch["sample_uid"])).tolist()]


def shuffled():
    return SequenceArray({"sample_uid": np.arange(100, 120)}).with_seed(3).batch(4)


def reservoir():
    source = SequenceArray({"sample_uid": np.arange(20)}).with_seed(3)
    options = {"deterministic": True, "max_reservoir_replacement_size": 5, "backend": "thread"}
    return source.async_reservoir(10, dict, min_reservoir_samples=10, **options).collate().batch(2)


def loader(**keywords):
    dataset = [{"sample_uid": index} for index in range(20)]
    return DataLoader(dataset, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1), **keywords)


@pytest.mark.parametrize(
    "make",
    [
        shuffled,
        lambda: shuffled().max_samples(8),
        reservoir,
        lambda: SequenceAdaptorTorch(loader()).with_seed(0),
        loader,
    ],
    ids=["array", "max_samples", "reservoir", "adaptor", "loader"],
)
@pytest.mark.parametrize("narrow", [None, lambda split: split.subsample(3)], ids=["all", "a few"])
def test_the_epochs_that_follow_are_those_of_a_split_nobody_looked_at(make, narrow):
    epochs = []
    for look in (True, False):
        split, seen = make(), []
        with split if hasattr(split, "close") else nullcontext():
            for _ in range(3):
                seen.append(uids(split))
                if look:
                    with shown(split, narrow) as another:
                        assert len(uids(another)) > 0
        epochs.append(seen)
    assert epochs[0] == epochs[1]
    assert epochs[0][0] != epochs[0][1]


def test_the_position_of_a_chain_is_not_moved():
    split = shuffled()
    open_epoch = iter(split)
    next(open_epoch)
    before = split.state_dict()
    with shown(split) as another:
        next(iter(another))
    assert split.state_dict() == before


def test_a_loader_without_a_generator_takes_nothing_from_the_global_ones():
    split = DataLoader(TensorDataset(torch.arange(8)), shuffle=True)
    before = random_states()
    orders = []
    for _ in range(2):
        with shown(split) as another:
            orders.append([int(row[0]) for row in another])
    assert random_states() == before
    assert orders[0] == orders[1], "the same samples are shown each time"


def test_what_can_be_read_only_once_is_left_to_the_training(caplog):
    generator = iter(batches())
    datasets = {"d": {"once": generator, "again": batches()}, "e": {"once": SequenceIterable(iter(batches()))}}
    with caplog.at_level(logging.WARNING):
        assert [(dataset, split) for dataset, split, _ in every_split(datasets)] == [("d", "again")]
    assert [record.args for record in caplog.records] == [("d/once",), ("e/once",)]
    assert len(list(generator)) == 3
    assert can_be_read_again(SequenceIterable(lambda: iter(batches())).batch(2), "d/s")


def test_a_callback_that_wants_one_batch_leaves_it_to_the_training_too():
    split = SequenceIterable(iter(batches()), batched=True)
    assert first_batch(Says(), {"d": {"once": split}}, "d", "once") is None
    assert uids(split) == list(range(100, 106))


def judge(model, split, look, callbacks_per_batch=()):
    options = create_default_options("unused", 1, "cpu")
    losses = {"d": lambda dataset, batch, terms: sum(term["loss"] for term in terms.values())}
    SecondLook(options, model, losses, callbacks_per_batch).judge(split, "d", "valid", look)


def test_a_second_look_judges_batches_as_an_evaluation_does_and_can_end_early():
    model, seen = Says().train(), []
    model.bias.grad = torch.ones(3)

    def look(run):
        seen.append((model.training, torch.is_grad_enabled(), run.batch["mark"], sorted(run.terms)))
        run.split_stopped = len(seen) == 2

    def mark(dataset, split, batch):
        batch["mark"] = f"{dataset}/{split}"

    judge(model, batches(), look, [mark])
    assert seen == [(False, False, "d/valid", ["y"])] * 2
    assert model.training
    assert model.bias.grad.tolist() == [1, 1, 1]


def test_names_of_classes_are_those_of_the_split():
    infos = {"d": {"train": {"output_mappings": {"truth": {"mapping": {"cat": 0}, "mappinginv": {0: "cat"}}, "y": {}}}}}
    assert class_names_of(infos, "d", "train") == {"truth": {0: "cat"}}
    for nothing in (None, {}, {"d": None}, {"d": {"valid": {}}}, {"d": {"train": {"output_mappings": None}}}):
        assert class_names_of(nothing, "d", "train") == {}


def test_the_samples_of_a_split_are_those_of_its_newest_run():
    history = [{"d": {"s": {"info": {"nb_samples": 4.0}}}}, {"d": {"s": {"info": {"nb_samples": 6.0}}}}, {"d": {}}]
    assert nb_samples_of(history, "d", "s") == 6
    assert nb_samples_of([], "d", "s") == float("inf")


def test_a_chain_with_workers_is_read_by_workers_of_its_own():
    with chain().map(dict, nb_workers=1, backend="thread") as split, shown(split) as another:
        assert uids(another) == uids(split)


class Embeds(Says):
    def forward(self, batch):
        heads = super().forward(batch)
        return {**heads, "embedding": OutputEmbedding(heads["y"].output)}


@pytest.mark.parametrize(
    "create",
    [
        CallbackExplainDecision,
        CallbackLearningRateFinder,
        lambda: CallbackTensorboardEmbedding("embedding"),
        lambda: CallbackTensorboardRecordModel(onnx_folder=None),
    ],
)
def test_a_split_that_can_be_read_only_once_is_left_to_the_training(create, tmp_path, caplog):
    rows = ({name: value[0] for name, value in batch.items()} for batch in batches(1))
    with SequenceIterable(rows).batch(2).collate() as once:
        _, _, result = fit(
            tmp_path,
            [create()],
            {"d": {"train": once}},
            "callbacks_pre_training_fn",
            model=Embeds(),
            with_final_evaluation=False,
        )
    assert result["history"][0]["d"]["train"]["info"]["nb_samples"] == 6
    assert "the split d/train can be read only once" in caplog.text
