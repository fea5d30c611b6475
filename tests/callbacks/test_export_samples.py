from contextlib import nullcontext

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from toy_samples import Endless, Says, batches, chain, fit, lines_of, names_in, samples

from trw_pipeline.callbacks.export_samples import CallbackExportSamples
from trw_pipeline.outputs.regression import OutputRegression
from trw_pipeline.outputs.segmentation import OutputSegmentation
from trw_pipeline.sequences.adaptor_torch import SequenceAdaptorTorch
from trw_pipeline.sequences.sequence import SequenceArray
from trw_pipeline.training.options import create_default_options


def test_each_sample_has_its_text_and_picture(tmp_path):
    folder, _, _ = fit(tmp_path, [CallbackExportSamples()], {"d": {"train": chain(), "valid": batches()}})
    samples = folder / "samples"
    expected = {f"d/d_{split}_s{number}_e1" for split in ("train", "valid") for number in range(6)}
    assert set(names_in(samples)) == {f"{name}.txt" for name in expected} | {f"{name}_image.png" for name in expected}
    said = {lines_of(samples / f"d/d_train_s{number}_e1.txt")["sample_uid"] for number in range(6)}
    assert said == {str(uid) for uid in range(100, 106)}
    lines = lines_of(samples / "d/d_valid_s1_e1.txt")
    loss = float(lines.pop("y loss"))
    assert loss == pytest.approx(float(torch.logsumexp(torch.tensor([0.0, 0.0, 4.0]), 0)))  # of the true class, 0
    assert lines == {
        "epochs": "1",
        "y output": "2 (cow)",
        "sample_uid": "101",
        "truth": "1 (dog)",
        "said": "2",
        "image": "float32 (1, 8, 8), 0 to 1, in d_valid_s1_e1_image.png",
        "name": "sample 1",
        "dataset_name": "d",
        "split_name": "valid",
    }
    with Image.open(samples / "d/d_valid_s1_e1_image.png") as image:
        assert np.argwhere(np.asarray(image.convert("L")) == 255).tolist() == [[0, 1]]


def test_what_is_excluded_is_not_written(tmp_path):
    callback = CallbackExportSamples(1, "few", ["output_raw", "absent"], ["image", "name"], ["e"], ["train"])
    datasets = {name: {"train": batches(), "valid": batches()} for name in ("d", "e")}
    folder, _, _ = fit(tmp_path, [callback], datasets)
    assert names_in(folder / "few") == ["d/d_valid_s0_e1.txt"]
    lines = lines_of(folder / "few/d/d_valid_s0_e1.txt")
    assert lines["y output_raw"] == "[4.0, 0.0, 0.0]"
    assert not {"image", "name", "y output"} & lines.keys()


@pytest.mark.parametrize("where", ["callbacks_pre_training_fn", "callbacks_post_training_fn"])
def test_the_epochs_in_the_names_are_those_that_are_finished(where, tmp_path):
    epochs = {"callbacks_pre_training_fn": 0, "callbacks_post_training_fn": 2}[where]
    folder, _, _ = fit(tmp_path, [CallbackExportSamples(1)], {"d": {"train": chain()}}, where, 2)
    assert names_in(folder / "samples") == [f"d/d_train_s0_e{epochs}.txt", f"d/d_train_s0_e{epochs}_image.png"]


def test_of_an_endless_split_only_the_batches_that_are_needed_are_read(tmp_path):
    read = []

    def note(dataset, split, batch):
        read.append(len(batch["truth"]))

    options = create_default_options(tmp_path, 1, "cpu")
    options["workflow_options"]["current_logging_directory"] = str(tmp_path)
    losses = {"d": lambda dataset, batch, terms: 0.0}
    CallbackExportSamples(3)(options, [], Says(), losses, None, {"d": {"train": Endless()}}, {}, [note])
    assert read == [2, 2]
    assert len(names_in(tmp_path / "samples")) == 6


def reservoir():
    source = SequenceArray(samples()).with_seed(0)
    return source.async_reservoir(4, dict, min_reservoir_samples=4, backend="thread").collate().batch(3)


def loader():
    rows = [{name: value[index] for name, value in samples().items()} for index in range(6)]
    return DataLoader(rows, batch_size=4, shuffle=True)


@pytest.mark.parametrize("make", [reservoir, loader, lambda: SequenceAdaptorTorch(loader())])
def test_samples_of_reservoirs_and_loaders(make, tmp_path):
    split = make()
    with split if hasattr(split, "close") else nullcontext():
        folder, _, _ = fit(tmp_path, [CallbackExportSamples(5)], {"d": {"train": split}})
    shown = [lines_of(path) for path in (folder / "samples").rglob("*.txt")]
    assert len({lines["sample_uid"] for lines in shown}) == 5
    names = ("0 (cat)", "1 (dog)", "2 (cow)")
    assert all(lines["truth"] == names[(int(lines["sample_uid"]) - 100) % 3] for lines in shown)


def test_heads_of_other_kinds_and_values_of_any_shape(tmp_path):
    class Net(Says):
        def forward(self, batch):
            scores = super().forward(batch)["y"].output
            points = scores[:, :, None, None].expand(-1, -1, 8, 8)
            return {
                "mask": OutputSegmentation(points, "mask"),
                "number": OutputRegression(scores[:, 0], "number", collect_output=False),
            }

    split = [{**batch, "mask": batch["image"][:, 0].long(), "number": batch["truth"].float()} for batch in batches(6)]
    folder, _, _ = fit(tmp_path, [CallbackExportSamples(2)], {"d": {"train": split}}, model=Net())
    lines = lines_of(folder / "samples/d/d_train_s1_e1.txt")
    assert lines["mask output"] == "int64 (8, 8), 2 to 2, in d_train_s1_e1_mask_output.png"
    assert float(lines["number loss"]) == pytest.approx(1.0)  # (0 - 1) ** 2
    assert lines["number output"] == "0", "also of a head that collects nothing"


def test_a_number_of_samples_has_to_be_positive():
    with pytest.raises(ValueError, match="max_samples must be at least 1, got 0"):
        CallbackExportSamples(0)
