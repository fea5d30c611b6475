import logging
import sys

import numpy as np
import pytest
import torch
from torch import nn
from toy_samples import Endless, Says, batches, chain, fit, lines_of, names_in, samples

from trw_pipeline.callbacks import worst_samples_by_epoch
from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.callbacks.early_stopping import CallbackEarlyStopping
from trw_pipeline.callbacks.skip_epoch import CallbackSkipEpoch
from trw_pipeline.callbacks.worst_samples_by_epoch import CallbackWorstSamplesByEpoch
from trw_pipeline.errors import MissingExtraError
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.regression import OutputRegression
from trw_pipeline.outputs.segmentation import OutputSegmentation
from trw_pipeline.sequences.sequence import SequenceArray
from trw_pipeline.training.options import create_default_options

WRONG = float(torch.logsumexp(torch.tensor([4.0, 0.0, 0.0]), 0))
RIGHT = WRONG - 4


@pytest.fixture(autouse=True)
def plots(monkeypatch):
    """The matrices that would be drawn: a picture takes half a second."""
    drawn = {}

    def plot(path, losses, uids, epochs, title):
        path.write_bytes(b"")
        drawn[path.name] = (np.asarray(losses), list(uids), list(epochs), title)

    monkeypatch.setattr(worst_samples_by_epoch, "plot_samples_by_epoch", plot)
    return drawn


def noted(callback, dataset="d", split="valid", output="y"):
    """Epoch -> uid -> loss, of a split."""
    for *place, by_epoch in callback.state_dict()["noted"]:
        if place == [dataset, split, output]:
            return {epoch: dict(zip(list(uids), losses.tolist(), strict=True)) for epoch, uids, losses in by_epoch}
    return {}


def test_the_losses_of_all_epochs_are_drawn_worst_first_and_the_worst_are_exported(tmp_path, plots):
    callback = CallbackWorstSamplesByEpoch(export_top_k_samples=3)
    datasets = {"d": {"train": chain(batch_size=4), "valid": batches(3)}}
    folder, _, _ = fit(tmp_path, [callback], datasets, num_epochs=3)
    for split in ("train", "valid"):
        losses, uids, epochs, title = plots[f"d_{split}_y.png"]
        assert uids[:2] == [101, 104]
        assert sorted(uids[2:]) == [100, 102, 103, 105]
        assert np.allclose(losses, np.array([[WRONG] * 3] * 2 + [[RIGHT] * 3] * 4), atol=1e-5)
        assert epochs == [0, 1, 2]
        assert title == f"highest losses of d/{split}: y"
    worst = folder / "worst_samples_by_epoch"
    assert names_in(worst) == sorted(
        f"d/d_{split}_y{end}"
        for split in ("train", "valid")
        for end in (".png", *[f"_s{rank}{kind}" for rank in range(3) for kind in (".txt", "_image.png")])
    )
    lines = lines_of(worst / "d/d_train_y_s1.txt")
    assert [lines[name] for name in ("epochs", "rank", "uid", "sample_uid", "truth")] == [
        "3",
        "1",
        "104",
        "104",
        "1 (dog)",
    ]
    assert lines["y loss by epoch"] == "0: {0:.6g}, 1: {0:.6g}, 2: {0:.6g}".format(float(lines["y loss"]))


def test_rows_in_the_order_of_the_uids(tmp_path, plots):
    callback = CallbackWorstSamplesByEpoch(["valid"], sort_samples_by_loss_error=False, export_top_k_samples=0)
    folder, _, _ = fit(tmp_path, [callback], {"d": {"train": batches(), "valid": batches()}})
    assert plots["d_valid_y.png"][1] == list(range(100, 106))
    assert names_in(folder / "worst_samples_by_epoch") == ["d/d_valid_y.png"]


def test_splits_heads_and_datasets_can_be_chosen(tmp_path, plots):
    datasets = {name: {"train": batches(), "valid": batches()} for name in ("d", "e")}
    callback = CallbackWorstSamplesByEpoch(["train"], "b", "e", "worst", export_top_k_samples=1)
    folder, _, _ = fit(tmp_path, [callback], datasets, model=Says("a", "b"))
    assert names_in(folder / "worst") == ["e/e_train_b.png", "e/e_train_b_s0.txt", "e/e_train_b_s0_image.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset_name": "x"}, r"dataset_name must be one of \['d'\], got 'x'"),
        ({"split_names": ["x"]}, r"split_names must be among \['train'\], got \['x'\]"),
        ({"output_name": "x"}, r"output_name must be one of \['overall_loss', 'y'\], got 'x'"),
    ],
)
def test_what_is_not_there_is_refused(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, [CallbackWorstSamplesByEpoch(**arguments)], {"d": {"train": batches()}})


def test_of_an_epoch_no_more_is_kept_than_asked_for(tmp_path, plots):
    callback = CallbackWorstSamplesByEpoch(worst_k_samples=3, export_top_k_samples=0)
    fit(tmp_path, [callback], {"d": {"train": batches(nb_samples=60, wrong=(7, 50))}}, num_epochs=2)
    assert {len(of_epoch) for of_epoch in noted(callback, split="train").values()} == {3}
    assert plots["d_train_y.png"][1][:2] == [107, 150]
    assert plots["d_train_y.png"][0].shape == (3, 2)


class Moody(Says):
    """Is wrong about another sample in each epoch."""

    def forward(self, batch):
        if self.training:
            return super().forward(batch)
        self.nb_looks = getattr(self, "nb_looks", -1) + 1
        wrong = batch["sample_uid"] == 100 + self.nb_looks
        return super().forward({**batch, "said": torch.where(wrong, (batch["said"] + 1) % 3, batch["said"])})


def test_a_loss_that_was_not_among_the_highest_of_its_epoch_is_unknown(tmp_path, plots):
    callback = CallbackWorstSamplesByEpoch(["valid"], worst_k_samples=1, export_top_k_samples=0)
    whole = batches(batch_size=6, wrong=())
    fit(tmp_path, [callback], {"d": {"train": whole, "valid": whole}}, num_epochs=2, model=Moody())
    losses, uids, epochs, _ = plots["d_valid_y.png"]
    assert [list(of_epoch) for of_epoch in noted(callback).values()] == [[100], [101]]
    assert (uids, epochs) == ([100], [0, 1])
    assert losses[0, 0] == pytest.approx(WRONG)
    assert np.isnan(losses[0, 1])


def test_samples_are_sorted_by_the_sum_of_their_losses():
    errors = {"a": [(1.0, 0), (1.0, 1)], "b": [(3.0, 0), (0.0, 1)], "c": [(0.0, 0), (2.5, 1)], "d": [(float("nan"), 1)]}
    sort = CallbackWorstSamplesByEpoch.sort_split_data
    assert [uid for uid, _ in sort(errors, None)] == ["d", "b", "c", "a"]
    assert [uid for uid, _ in sort(errors, 2)] == ["d", "b"]
    assert sort({name: errors[name] for name in "abc"}, 2, 1) == [("c", [(2.5, 1)]), ("a", [(1.0, 1)])]


class Others(nn.Module):
    """A regression and a segmentation, both wrong by the value of `number`."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, batch):
        by = (batch["number"] + self.bias)[:, None, None]
        return {
            "of numbers": OutputRegression(torch.stack([by[:, 0], 0 * by[:, 0]], 1), "zeros"),
            "of points": OutputSegmentation(torch.stack([0 * by, by], 1).expand(-1, -1, 4, 4), "mask"),
        }


def test_regressions_and_segmentations_count_by_the_mean_of_a_sample(tmp_path):
    numbers = torch.tensor([1.0, 4.0, 2.0, 3.0])
    split = SequenceArray(
        {"number": numbers, "zeros": torch.zeros(4, 2, 1), "mask": torch.zeros(4, 4, 4, dtype=torch.int64)}
    )
    callback = CallbackWorstSamplesByEpoch(export_top_k_samples=1)
    datasets = {"d": {"train": split.with_seed(0).batch(3).collate()}}
    folder, _, _ = fit(tmp_path, [callback], datasets, model=Others())
    by_number = noted(callback, split="train", output="of numbers")[0]
    assert by_number == pytest.approx({1: 8.0, 3: 4.5, 2: 2.0, 0: 0.5})
    assert list(noted(callback, split="train", output="of points")[0]) == [1, 3, 2, 0]
    for name in ("of_numbers", "of_points"):
        assert lines_of(folder / f"worst_samples_by_epoch/d/d_train_{name}_s0.txt")["number"] == "4"


def test_in_a_list_without_uids_a_sample_is_known_by_its_place(tmp_path):
    callback = CallbackWorstSamplesByEpoch(export_top_k_samples=2)
    folder, _, _ = fit(tmp_path, [callback], {"d": {"train": batches(without=("sample_uid",))}})
    assert list(noted(callback, split="train")[0])[:2] == [1, 4]
    assert lines_of(folder / "worst_samples_by_epoch/d/d_train_y_s1.txt")["name"] == "sample 4"


class Unknown:
    """Neither a list nor a chain, and without uids."""

    def __iter__(self):
        return iter(batches(without=("sample_uid",)))


def test_other_splits_without_uids_are_left_out_with_one_warning(tmp_path, caplog):
    callback = CallbackWorstSamplesByEpoch()
    with caplog.at_level(logging.WARNING, "trw_pipeline"):
        folder, _, _ = fit(tmp_path, [callback], {"d": {"train": Unknown()}}, num_epochs=3)
    assert not (folder / "worst_samples_by_epoch").exists()
    assert [record.message for record in caplog.records] == [
        "the samples of ('d', 'train', 'y') have no 'sample_uid': the worst are not followed"
    ]


def test_texts_are_uids_too_and_samples_that_share_one_count_as_their_mean(tmp_path):
    whole = {name: value for name, value in samples().items() if name != "name"}
    whole["sample_uid"] = ["a/1", "b", "b", "c", "d", "e"]
    split = SequenceArray(whole).with_seed(0).batch(4).collate()
    callback = CallbackWorstSamplesByEpoch(export_top_k_samples=2)
    folder, _, _ = fit(tmp_path, [callback], {"d": {"train": split}})
    losses = noted(callback, split="train")[0]
    assert next(iter(losses)) == "d"
    assert losses["b"] == pytest.approx((WRONG + RIGHT) / 2)
    assert lines_of(folder / "worst_samples_by_epoch/d/d_train_y_s0.txt")["uid"] == "d"


def test_samples_that_do_not_come_again_are_looked_for_among_as_many_as_an_epoch_had(tmp_path):
    class Changing(Endless):
        def __iter__(self):
            passes.append(0)
            while True:
                passes[-1] += 1
                yield self.batches[min(len(passes), 2)]

    def stop_after_four(dataset, split, batch):
        if passes == [4]:
            raise StopIteration

    passes = []
    fit(
        tmp_path,
        [CallbackWorstSamplesByEpoch(export_top_k_samples=3)],
        {"d": {"train": Changing()}},
        more_callbacks={"callbacks_per_batch_fn": lambda: [stop_after_four]},
        with_final_evaluation=False,
    )
    assert passes == [4, 4], "batches of two samples"


def test_a_training_that_stops_early_exports_what_it_has(tmp_path, plots):
    stop = CallbackEarlyStopping(("d", "train", "overall_loss", "loss"), patience=1)
    callback = CallbackWorstSamplesByEpoch(export_top_k_samples=0)
    fit(tmp_path, [callback, stop], {"d": {"train": batches()}}, num_epochs=9)
    assert plots["d_train_y.png"][2] == [0, 1]


def test_every_few_epochs(tmp_path, plots):
    skip = CallbackSkipEpoch(2, [CallbackWorstSamplesByEpoch(export_top_k_samples=0)])
    fit(tmp_path, [skip], {"d": {"train": batches()}}, num_epochs=5)
    assert plots["d_train_y.png"][2] == [1, 3]


def test_after_a_training_the_final_evaluation_alone_is_shown(tmp_path, plots):
    callback = CallbackWorstSamplesByEpoch(export_top_k_samples=0)
    fit(tmp_path, [callback], {"d": {"train": batches()}}, "callbacks_post_training_fn", 2)
    assert plots["d_train_y.png"][2] == [2]


def test_a_training_that_goes_on_has_what_it_had(tmp_path):
    datasets = {"d": {"train": batches()}}
    whole = CallbackWorstSamplesByEpoch(export_top_k_samples=0)
    fit(tmp_path, [whole], datasets, num_epochs=4)
    first = CallbackWorstSamplesByEpoch(export_top_k_samples=0)
    folder, _, _ = fit(tmp_path, [first, CallbackCheckpoint()], datasets, num_epochs=2)
    second = CallbackWorstSamplesByEpoch(export_top_k_samples=0)
    fit(tmp_path, [second, CallbackCheckpoint()], datasets, num_epochs=4, resume=folder)
    assert noted(second, split="train") == noted(whole, split="train")
    assert list(noted(second, split="train")) == [0, 1, 2, 3]


def test_it_is_called_as_documented_also_without_a_run(tmp_path, plots):
    options = create_default_options(tmp_path, 1, "cpu")
    options["workflow_options"]["current_logging_directory"] = str(tmp_path)
    head = OutputClassification(torch.zeros(2, 3), "truth")
    term = {"losses": np.array([0.5, 2.0]), "uid": np.array([7, 8]), "output_ref": head}
    callback = CallbackWorstSamplesByEpoch(export_top_k_samples=0)
    arguments = (options, [{}], Says(), {}, {"d": {"s": {"y": term}}}, {"d": {"s": batches()}}, {}, [])
    callback(*arguments, last_epoch=False)
    assert not plots
    callback(*arguments, last_epoch=True)
    assert plots["d_s_y.png"][1] == [8, 7]


def test_an_absent_library_is_missed_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    read = []
    callbacks = {"callbacks_per_batch_fn": lambda: [lambda *arguments: read.append(arguments)]}
    with pytest.raises(MissingExtraError, match=r"pip install 'trw_pipeline\[plot\]'"):
        fit(tmp_path, [CallbackWorstSamplesByEpoch()], {"d": {"train": batches()}}, more_callbacks=callbacks)
    assert read == []


def test_numbers_are_checked():
    with pytest.raises(ValueError, match="worst_k_samples must be at least 1, got 0"):
        CallbackWorstSamplesByEpoch(worst_k_samples=0)
    with pytest.raises(ValueError, match="export_top_k_samples must be at least 1, got -1"):
        CallbackWorstSamplesByEpoch(export_top_k_samples=-1)
