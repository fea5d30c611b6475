import html
import json
import re

import pytest
import torch
from toy_trainer import broken, datasets, fitting_in, trainer

from trw_pipeline.callbacks.checkpoint import CallbackCheckpoint
from trw_pipeline.callbacks.early_stopping import CallbackEarlyStopping
from trw_pipeline.callbacks.export_classification_report import CallbackExportClassificationReport
from trw_pipeline.callbacks.report import CallbackReport
from trw_pipeline.reporting.run_record import read_run
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray
from trw_pipeline.training.callback import Callback


@pytest.fixture
def fit(tmp_path):
    return fitting_in(tmp_path)


def page_of(folder):
    page = (folder / "report.html").read_text(encoding="utf-8")
    return " ".join(
        html.unescape(re.sub(r"<style>.*</style>|<script>.*</script>|<[^>]+>", " ", page, flags=re.S)).split()
    )


def always():
    return CallbackReport(max_share=1e9)


class Looks(Callback):
    """Reads the report at each end of an epoch, as a person would; listed after it, so that it comes after it."""

    outer = True

    def __init__(self):
        self.seen = []

    def on_fit_start(self, run):
        self._look(run)

    def on_epoch_end(self, run):
        self._look(run)

    def _look(self, run):
        record = read_run(run.log_dir)
        self.seen.append((record.state, len(record.epochs), 'http-equiv="refresh"' in page_text(run.log_dir)))


def page_text(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_report_can_be_watched_and_comes_to_rest(fit, tmp_path):
    looks = Looks()
    # Of hooks that start something the first listed comes first, of all others too.
    _, result = fit(trainer(always(), looks))
    assert looks.seen == [("running", 0, True), ("running", 1, True), ("running", 2, True)]
    record = read_run(tmp_path / "default_r0")
    assert (record.state, record.nb_epochs) == ("completed", 2)
    assert record.epochs == result["history"][:2]
    assert record.final == result["history"][2]
    assert 'http-equiv="refresh"' not in page_text(tmp_path / "default_r0")
    assert "Completed 2 epochs" in page_of(tmp_path / "default_r0")


def test_an_error_is_told_with_what_there_is(fit, tmp_path):
    with pytest.raises(OSError, match="disk <full>"):
        fit(trainer(always(), broken(OSError("disk <full>"), "on_fit_end")))
    record = read_run(tmp_path / "default_r0")
    assert (record.state, record.error, len(record.epochs)) == ("interrupted", "OSError: disk <full>", 2)
    assert "OSError: disk <full>" in page_of(tmp_path / "default_r0")


def test_a_training_that_is_stopped_says_so(fit, tmp_path):
    early = CallbackEarlyStopping(("d", "train", "overall_loss", "loss"), patience=1, min_delta=100.0)
    fit(trainer(CallbackReport(), early), num_epochs=5)
    assert "Stopped early 2 of 5 epochs" in page_of(tmp_path / "default_r0")


def test_a_resumed_training_goes_on_in_its_report(fit, tmp_path):
    class Dies(Callback):
        def on_epoch_start(self, run):
            if run.epoch == 2 and not run.resumed:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(trainer(CallbackReport(), CallbackCheckpoint(), Dies()), num_epochs=4)
    folder = tmp_path / "default_r0"
    before = read_run(folder)
    assert (before.state, before.error, len(before.epochs)) == ("interrupted", "KeyboardInterrupt", 2)
    _, result = fit(trainer(CallbackReport(), CallbackCheckpoint()), num_epochs=4, resume=folder)
    after = read_run(folder)
    assert after.epochs == result["history"][:4], "each epoch once"
    assert after.learning_rates == [{"d": 0.1}] * 4
    assert after.started == before.started
    assert after.elapsed_s > before.elapsed_s
    assert (after.state, after.error) == ("completed", "")


def test_learning_rates_stay_in_line_where_the_checkpoint_knew_no_report(fit, tmp_path):
    fit(trainer(CallbackCheckpoint()), num_epochs=2)
    fit(trainer(CallbackReport()), num_epochs=3, resume=tmp_path / "default_r0" / "checkpoints" / "last.pt")
    assert read_run(tmp_path / "default_r0").learning_rates == [{}, {}, {"d": 0.1}]


def test_epochs_are_passed_over_while_writing_would_take_more_than_its_share(fit, tmp_path, monkeypatch):
    """A clock of which each reading is a second later; a writing takes one, between two readings."""
    written = []
    original = CallbackReport._record

    def note(self, run, state):
        written.append((state, run.nb_epochs_done))
        return original(self, run, state)

    monkeypatch.setattr(CallbackReport, "_record", note)
    seconds = iter(range(10**9))
    fit(trainer(CallbackReport(max_share=0.001)), num_epochs=6, clock=lambda: float(next(seconds)))
    assert written == [("running", 0), ("completed", 6)]
    written.clear()
    fit(trainer(CallbackReport(max_share=1e9)), num_epochs=3, clock=lambda: float(next(seconds)))
    assert written == [("running", 0), ("running", 1), ("running", 2), ("running", 3), ("completed", 3)]


@pytest.mark.parametrize("share", [0.0, -1.0, float("nan")])
def test_a_share_of_nothing_is_refused(share):
    with pytest.raises(ValueError, match="max_share must be above 0, got"):
        CallbackReport(max_share=share)


def test_the_stages_of_a_chain_are_described_as_they_were_in_its_own_epoch(fit, tmp_path):
    def chains():
        arrays = {"x": torch.ones(6, 3), "truth": torch.zeros(6, dtype=torch.int64)}
        chain = SequenceArray(arrays, SamplerSequential()).map(lambda batch: batch, nb_workers=0, name="load").batch(2)
        return {"d": {"train": chain.collate(), "valid": datasets()["d"]["valid"]}}

    made = chains()
    fit(trainer(CallbackReport()), inputs=lambda: made)
    stages = read_run(tmp_path / "default_r0").stages
    assert list(stages) == ["d/train"], "a list of batches has none"
    assert stages["d/train"].figures["consumer"]["epoch_items"] == 3
    assert stages["d/train"].figures["1:load"]["epoch_items"] == 6
    assert "x: (N, 3)" in stages["d/train"].description
    made["d"]["train"].close()


def test_model_options_and_versions_are_told(fit, tmp_path):
    fit(trainer(CallbackReport()), clip_norm=2.0)
    record = read_run(tmp_path / "default_r0")
    assert record.model == [("", "Net", 8, 8), ("inner", "Linear(in_features=3, out_features=2, bias=True)", 8, 8)]
    assert record.options["training_parameters.num_epochs"] == "2"
    assert record.options["fit.clip_norm"] == "2.0"
    assert record.options["optimizers.d"].startswith("SGD(lr=0.1, ")
    assert record.versions["torch"] == torch.__version__


@pytest.mark.parametrize(("where", "state"), [("pre", "running"), ("post", "completed")])
def test_it_writes_a_report_at_the_one_moment_of_the_other_lists(fit, tmp_path, where, state):
    fit(trainer(**{where: [CallbackReport()]}))
    assert read_run(tmp_path / "default_r0").state == state


@pytest.mark.slow
def test_it_has_the_pictures_that_callbacks_after_the_training_leave(fit, tmp_path):
    fit(trainer(CallbackReport(), post=[CallbackExportClassificationReport()]))
    page = page_text(tmp_path / "default_r0")
    assert page.count('<img src="data:image/png;base64,') == len(list((tmp_path / "default_r0").glob("*.png"))) > 0
    assert "Confusion matrices" in page_of(tmp_path / "default_r0")


def test_an_evaluation_without_training_has_a_report_too(fit, tmp_path):
    fit(trainer(CallbackReport()), optimizers_fn=None)
    record = read_run(tmp_path / "default_r0")
    assert (record.state, record.epochs) == ("completed", [])
    assert record.final["d"]["valid"]["y"]["classification error"] >= 0
    assert "d · valid · y · classification error" in page_of(tmp_path / "default_r0")


def test_the_file_of_the_record_is_json_of_numbers_and_text_alone(fit, tmp_path):
    fit(trainer(CallbackReport()))
    saved = json.loads((tmp_path / "default_r0" / "report.json").read_text(), parse_constant=pytest.fail)
    assert saved["format"] == 1
