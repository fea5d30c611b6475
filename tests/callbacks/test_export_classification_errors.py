import pytest
import torch
from toy_samples import Endless, Says, batches, chain, fit, lines_of, names_in

from trw_pipeline.callbacks.export_classification_errors import CallbackExportClassificationErrors
from trw_pipeline.callbacks.export_samples import CallbackExportSamples
from trw_pipeline.outputs.classification import OutputClassification
from trw_pipeline.outputs.regression import OutputRegression


def errors_of(folder, callback, split, **keywords):
    folder, _, _ = fit(folder, [callback], {"d": {"train": batches(), "valid": split}}, **keywords)
    return folder / "errors"


def uids_in(folder):
    return sorted(int(lines_of(path)["sample_uid"]) for path in folder.rglob("*.txt"))


def test_the_samples_that_were_taken_for_another_class(tmp_path):
    errors = errors_of(tmp_path, CallbackExportClassificationErrors(), batches())
    names = [f"d/d_valid_s{number}_e1" for number in (0, 1)]
    assert names_in(errors) == [file for name in names for file in (f"{name}.txt", f"{name}_image.png")]
    lines = lines_of(errors / "d/d_valid_s1_e1.txt")
    assert [lines[name] for name in ("wrong", "sample_uid", "y output", "truth")] == ["y", "104", "2 (cow)", "1 (dog)"]


@pytest.mark.parametrize("max_samples", [1, 2, 3, 7])
@pytest.mark.parametrize("batch_size", [1, 4, 20])
def test_there_are_never_more_than_asked_for_also_within_a_batch(max_samples, batch_size, tmp_path):
    split = batches(batch_size, nb_samples=20, wrong=(0, 1, 2, 3, 17))
    errors = errors_of(tmp_path, CallbackExportClassificationErrors(max_samples), split)
    assert uids_in(errors) == [100, 101, 102, 103, 117][:max_samples]


def test_a_chain_and_the_split_that_is_trained_on(tmp_path):
    callback = CallbackExportClassificationErrors(discard_train=False, dirname="wrong ones")
    folder, _, _ = fit(tmp_path, [callback], {"d": {"train": chain()}})
    assert uids_in(folder / "wrong ones") == [101, 104]
    callback = CallbackExportClassificationErrors()
    folder, _, _ = fit(tmp_path, [callback], {"d": {"train": chain()}})
    assert not (folder / "errors").exists()


def test_a_sample_is_written_once_however_many_heads_are_wrong(tmp_path):
    errors = errors_of(tmp_path, CallbackExportClassificationErrors(), batches(), model=Says("a", "b"))
    assert uids_in(errors) == [101, 104]
    assert lines_of(errors / "d/d_valid_s0_e1.txt")["wrong"] == "a, b"


def test_a_head_that_collects_nothing_is_judged_all_the_same(tmp_path):
    model = Says(collect_output=False)
    errors = errors_of(tmp_path, CallbackExportClassificationErrors(), batches(), model=model)
    assert uids_in(errors) == [101, 104]
    assert lines_of(errors / "d/d_valid_s0_e1.txt")["y output"] == "2 (cow)"


def test_a_sample_without_a_class_is_no_error(tmp_path):
    split = [{**batch, "truth": torch.full_like(batch["truth"], -100)} for batch in batches()]
    with_classes = batches()
    errors = errors_of(tmp_path, CallbackExportClassificationErrors(), [*split, *with_classes])
    assert len(uids_in(errors)) == 2


def test_without_a_classification_one_batch_is_read_and_nothing_written(tmp_path):
    class Net(Says):
        def forward(self, batch):
            return {"y": OutputRegression(self.bias[0] + batch["image"].mean((1, 2, 3)), "number")}

    reads = []

    class Counting(list):
        def __iter__(self):
            for batch in super().__iter__():
                reads.append(batch)
                yield batch

    split = Counting({**batch, "number": batch["truth"].float()} for batch in batches())
    callback = CallbackExportClassificationErrors(discard_train=False)
    folder, _, _ = fit(tmp_path, [callback], {"d": {"train": split}}, "callbacks_pre_training_fn", 0, Net())
    assert not (folder / "errors").exists()
    assert len(reads) == 1 + 3  # and the final evaluation


def test_a_split_that_a_callback_ends_is_not_read_beyond_what_was_evaluated(tmp_path):
    seen = []

    def stop_after_ten(dataset, split, batch):
        seen.append(split)
        if seen.count("valid") == 10:
            raise StopIteration

    datasets = {"d": {"train": batches(), "valid": Endless(wrong=())}}
    callbacks = {"callbacks_per_batch_fn": lambda: [stop_after_ten]}
    fit(
        tmp_path,
        [CallbackExportClassificationErrors()],
        datasets,
        with_final_evaluation=False,
        more_callbacks=callbacks,
    )
    assert seen.count("valid") == 20


class SaysOfSome(Says):
    """A head that judges some of the samples, as of the nodes of a graph."""

    def forward(self, batch):
        heads = super().forward(batch)
        return {"some": OutputClassification(heads["y"].output[:1], "truth of one")}


def test_a_head_that_judges_fewer_samples_than_there_are_tells_of_none(tmp_path):
    split = [{**batch, "truth of one": 1 - batch["said"][:1].clamp(max=1)} for batch in batches(3)]
    callbacks = [CallbackExportClassificationErrors(discard_train=False), CallbackExportSamples(4)]
    folder, _, _ = fit(tmp_path, callbacks, {"d": {"train": split}}, model=SaysOfSome())
    assert not (folder / "errors").exists()
    lines = [lines_of(path) for path in (folder / "samples").rglob("*.txt")]
    assert len(lines) == 4
    assert not any("some loss" in of_sample for of_sample in lines)
