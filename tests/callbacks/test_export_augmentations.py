import logging
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from toy_samples import Endless, batches, chain, fit, lines_of, names_in, samples

from trw_pipeline.callbacks.export_augmentations import CallbackExportAugmentations
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray, SequenceIterable


def augmented(batch):
    return {**batch, "image": batch["image"] + np.random.random(batch["image"].shape).astype(np.float32)}


def export(folder, train, *arguments, where="callbacks_pre_training_fn", **keywords):
    callback = CallbackExportAugmentations(*arguments, **keywords)
    folder, _, _ = fit(folder, [callback], {"d": {"valid": batches(), "train": train}}, where)
    return folder / callback.dirname


def before_training(folder, callback, dataset):
    """Runs it, and nothing else."""
    where = "callbacks_pre_training_fn"
    return fit(folder, [callback], {"d": dataset}, where, 0, with_final_evaluation=False)[0]


def pictures_of(folder, uid, nb):
    found = []
    for number in range(nb):
        assert lines_of(folder / f"d/d_train_s{uid}_a{number}.txt")["augmentation"] == str(number)
        with Image.open(folder / f"d/d_train_s{uid}_a{number}_image.png") as image:
            found.append(np.asarray(image).tobytes())
    return found


def uids_in(folder):
    return {lines_of(path)["sample_uid"] for path in folder.rglob("*.txt")}


def rows():
    return [{name: value[index] for name, value in samples().items() if name != "name"} for index in range(6)]


def joined(rows):
    batch = augmented({name: np.stack([row[name] for row in rows]) for name in rows[0]})
    return {name: torch.from_numpy(value) for name, value in batch.items()}


MAKERS = {
    "transforms": lambda: chain(transforms=augmented),
    "map": lambda: SequenceArray(samples(), SamplerSequential()).with_seed(0).map(augmented).batch(2).collate(),
    "shuffled": lambda: SequenceArray(samples(), None, augmented).with_seed(0).batch(3).collate(),
    "reservoir": lambda: (
        SequenceArray(samples()).with_seed(0).async_reservoir(4, augmented, backend="thread").collate().batch(2)
    ),
    "loader": lambda: DataLoader(rows(), shuffle=True, batch_size=4, collate_fn=joined),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_same_samples_come_several_times_and_look_different(make, tmp_path):
    split = make()
    with split if hasattr(split, "close") else nullcontext():
        folder = export(tmp_path, split, 3, 4)
    uids = uids_in(folder)
    assert len(uids) == 3
    assert len(names_in(folder)) == 3 * 4 * 2
    for uid in uids:
        assert len(set(pictures_of(folder, uid, 4))) == 4
        truths = {lines_of(path)["truth"] for path in folder.rglob(f"*_s{uid}_a*.txt")}
        assert truths == {f"{(int(uid) - 100) % 3} ({('cat', 'dog', 'cow')[(int(uid) - 100) % 3]})"}


def test_the_split_and_the_folder_can_be_chosen(tmp_path):
    folder = export(tmp_path, chain(), 2, 1, "seen", "valid")
    assert names_in(folder)[0] == "d/d_valid_s100_a0.txt"
    assert len(names_in(folder)) == 4


def test_samples_are_others_each_time_unless_they_are_kept(tmp_path):
    shown = {}
    for keep in (False, True):
        callback = CallbackExportAugmentations(3, 1, keep_samples=keep)
        folder, _, _ = fit(tmp_path, [callback], {"d": {"train": chain(nb_samples=60)}}, num_epochs=3)
        shown[keep] = len(uids_in(folder / "augmentations"))
    assert shown == {False: 9, True: 3}


def test_an_uid_of_the_batches_that_the_source_of_the_chain_has_not(tmp_path):
    def name_it(batch):
        return augmented({**batch, "patient": [f"patient/{uid}" for uid in batch["sample_uid"].tolist()]})

    split = SequenceArray(samples(), SamplerSequential()).with_seed(0).map(name_it).batch(2).collate()
    folder = export(tmp_path, split, 2, 3, uid_name="patient")
    assert len(names_in(folder)) == 2 * 3 * 2
    assert {lines_of(path)["patient"].partition("/")[0] for path in folder.rglob("*.txt")} == {"patient"}


def test_in_a_list_without_uids_a_sample_is_known_by_its_place(tmp_path):
    folder = export(tmp_path, batches(without=("sample_uid",)), 3, 2)
    assert sorted({path.stem for path in folder.rglob("*.txt")}) == [
        f"d_train_s{place}_a{number}" for place in range(3) for number in range(2)
    ]
    assert lines_of(folder / "d/d_train_s2_a1.txt")["name"] == "sample 2"


@pytest.mark.parametrize(
    "make", [lambda: Endless(without=("sample_uid",)), lambda: SequenceIterable(iter(batches()), batched=True)]
)
def test_a_split_whose_samples_are_not_known_again_is_left_out_with_a_warning(make, tmp_path, caplog):
    callback = CallbackExportAugmentations(split_name="other")
    with caplog.at_level(logging.WARNING, "trw_pipeline"):
        folder = before_training(tmp_path, callback, {"train": batches(), "other": make()})
    assert not (folder / "augmentations").exists()
    assert "d/other" in caplog.text


def test_of_an_endless_split_a_bounded_number_of_samples_is_read(tmp_path):
    class Once(Endless):
        """The first sample comes in the first pass alone."""

        def __iter__(self):
            passes.append(0)
            if len(passes) == 1:
                yield self.batches[0]
            while True:
                passes[-1] += 1
                yield self.batches[1]

    passes = []
    before_training(tmp_path, CallbackExportAugmentations(1, 2), {"train": Once(batch_size=1)})
    assert passes == [0, 100, 100]


def test_numbers_have_to_be_positive():
    for name in ("nb_samples", "nb_augmentation"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            CallbackExportAugmentations(**{name: 0})
