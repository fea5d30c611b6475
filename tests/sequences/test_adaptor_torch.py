"""`SequenceAdaptorTorch`: the batches of a PyTorch loader as a sequence."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from trw_pipeline.sequences.adaptor_torch import SequenceAdaptorTorch

NB = 5


class Dicts(Dataset):
    def __len__(self):
        return NB

    def __getitem__(self, i):
        return {"image": torch.full((2, 2), float(i)), "target": i, "name": f"s{i}"}


def tuples(**options):
    return DataLoader(TensorDataset(torch.arange(NB) * 10, torch.arange(NB)), batch_size=2, **options)


def numbers(items, name):
    return [int(x) for item in items for x in item[name]]


def test_dicts_pass_as_they_are():
    batches = list(SequenceAdaptorTorch(DataLoader(Dicts(), batch_size=2)))
    assert [batch["target"].tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert batches[0]["image"].shape == (2, 2, 2)
    assert batches[0]["name"] == ["s0", "s1"]


def test_tuples_get_the_names_that_are_given():
    batches = list(SequenceAdaptorTorch(tuples(), ["image", "target"]))
    assert numbers(batches, "image") == [0, 10, 20, 30, 40]
    assert numbers(batches, "target") == [0, 1, 2, 3, 4]


def test_tuples_get_numbered_names_by_default():
    batches = list(SequenceAdaptorTorch(tuples(collate_fn=tuple_of)))
    assert [list(batch) for batch in batches] == [["feature_0", "feature_1"]] * 3


def tuple_of(samples):
    images, targets = zip(*samples, strict=True)
    return torch.stack(images), torch.stack(targets)


@pytest.mark.parametrize("names", [["image"], ["image", "target", "uid"]])
def test_a_wrong_number_of_names_is_an_error(names):
    with pytest.raises(ValueError, match=rf"features names {len(names)} features .* a batch has 2"):
        next(iter(SequenceAdaptorTorch(tuples(), names)))


def test_a_batch_of_another_kind_is_an_error():
    with pytest.raises(TypeError, match="dicts, tuples or lists, got Tensor"):
        next(iter(SequenceAdaptorTorch(DataLoader(range(4), batch_size=2))))


def test_the_length_is_the_loaders():
    sequence = SequenceAdaptorTorch(tuples())
    assert len(sequence) == 3
    assert len(sequence.batch(2)) == 2


def test_the_number_of_the_epoch_is_passed_on():
    sampler = DistributedSampler(range(8), num_replicas=1, rank=0, seed=3)
    loader = DataLoader(
        range(8), batch_size=8, sampler=sampler, collate_fn=lambda samples: {"x": torch.tensor(samples)}
    )
    sequence = SequenceAdaptorTorch(loader)
    orders = [numbers(sequence, "x") for _ in range(3)]
    sequence.set_epoch(1)
    assert numbers(sequence, "x") == orders[1] != orders[0] != orders[2]


def test_the_number_of_the_epoch_is_passed_on_by_the_chain():
    sampler = DistributedSampler(range(8), num_replicas=1, rank=0, seed=3)
    loader = DataLoader(range(8), sampler=sampler, collate_fn=lambda samples: {"x": torch.tensor(samples)})
    chain = SequenceAdaptorTorch(loader).batch(4)
    chain.set_epoch(6)
    list(chain)
    assert sampler.epoch == 6


def test_all_verbs_work_on_it():
    with SequenceAdaptorTorch(tuples(), ["image", "target"]).map(
        lambda batch: {"x": batch["image"] + 1}, nb_workers=2, backend="thread"
    ) as mapped:
        assert [batch["x"].tolist() for batch in mapped.rebatch(3)] == [[1, 11, 21], [31, 41]]


def test_a_loader_with_workers_of_its_own_is_ended_with_the_epoch():
    sequence = SequenceAdaptorTorch(DataLoader(Dicts(), batch_size=2, num_workers=1))
    assert numbers(sequence, "target") == list(range(NB))
    next(iter(sequence))
    sequence.close()


def test_a_smaller_version_keeps_names_and_kinds():
    smaller = SequenceAdaptorTorch(tuples(), ["image", "target"]).subsample(3)
    batches = list(smaller)
    assert numbers(batches, "image") == [0, 10, 20]
    assert all(isinstance(batch["target"], torch.Tensor) for batch in batches)
    assert [set(batch) for batch in batches] == [{"image", "target"}] * 3


def test_samples_of_a_loader_are_found_by_uid():
    smaller = SequenceAdaptorTorch(DataLoader(Dicts(), batch_size=2)).subsample_uids(["s3", "s0", "s9"], "name")
    assert numbers(smaller, "target") == [3, 0]
    assert next(iter(smaller))["image"].tolist() == [[[3, 3], [3, 3]]]


def test_a_dataset_instead_of_a_loader_is_an_error():
    with pytest.raises(TypeError, match=r"torch_dataloader must be a .*DataLoader, got Dicts"):
        SequenceAdaptorTorch(Dicts())


def test_a_loader_that_can_not_be_resumed_is_named_and_the_way_out_too():
    sequence = SequenceAdaptorTorch(tuples(), ["x", "y"]).batch(2)
    iterator = iter(sequence)
    next(iterator)
    with pytest.raises(TypeError, match=r"'SequenceAdaptorTorch' can not be resumed.*set_epoch"):
        sequence.state_dict()
