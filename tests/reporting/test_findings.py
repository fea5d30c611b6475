import math

from trw_pipeline.reporting.findings import Wait, best_of, findings_of, loop_wait, main_metric, mean_speed
from trw_pipeline.reporting.run_record import RunRecord, Stages


def entry(train, valid=None, **info):
    splits = {"train": {"overall_loss": {"loss": train}}}
    if valid is not None:
        splits["valid"] = {"overall_loss": {"loss": valid}}
    if info:
        splits["train"]["info"] = info
    return {"d": splits}


def record(epochs, **changed):
    given = {"name": "r", "state": "completed", "updated": 0.0, "nb_epochs": len(epochs), "epochs": epochs}
    return RunRecord(**{**given, **changed})


def found(epochs, share=None, **changed):
    wait = None if share is None else Wait(share, "device")
    return [(one.level, one.subject) for one in findings_of(record(epochs, **changed), wait)]


def test_a_training_that_went_well_has_no_findings():
    assert found([entry(2.0, 2.5), entry(1.0, 1.5), entry(0.5, 1.4)], 0.01) == []


def test_an_error_is_told_in_its_own_words():
    (one,) = findings_of(record([entry(1.0)], state="interrupted", error="OSError: disk full"), None)
    assert one.level == "bad"
    assert one.text == "The training was interrupted after 1 epoch: OSError: disk full"


def test_a_loss_that_is_no_number_is_told_with_its_epochs():
    (one,) = findings_of(record([entry(2.0), entry(math.nan), entry(1.0), entry(math.inf)]), None)
    assert one.text == "d/train: loss is no finite number in epochs 1, 3."


def test_a_training_loss_that_does_not_fall_is_bad():
    assert found([entry(1.0), entry(1.0)]) == [("bad", "Learning")]
    assert found([entry(1.0), entry(0.9), entry(1.2)]) == []
    assert found([entry(1.0)]) == [], "after one epoch nobody knows"


def test_a_validation_loss_that_rises_for_three_epochs_is_overfitting():
    rising = [entry(1.0 / (i + 1), valid) for i, valid in enumerate((2.0, 1.0, 1.2, 1.5, 1.9))]
    assert found(rising) == [("fair", "Overfitting")]
    assert found(rising[:4]) == [], "two epochs are noise"
    flat = [entry(1.0 / (i + 1), valid) for i, valid in enumerate((2.0, 1.0, 1.01, 1.02, 1.01))]
    assert found(flat) == []


def test_waiting_is_judged_and_what_limits_is_named():
    stages = {"d/train": Stages(limit="'load' limits.", description="", figures={})}
    epochs = [entry(2.0), entry(1.0)]
    assert found(epochs, 0.04, stages=stages) == []
    assert found(epochs, 0.1, stages=stages) == [("fair", "Data")]
    (one,) = findings_of(record(epochs, stages=stages), Wait(0.5, "device"))
    assert one.level == "bad"
    assert one.text == "The device waited for data 50 % of the time of training. 'load' limits."


def test_failed_samples_and_lost_workers_are_told():
    stages = {"d/train": Stages(limit="", description="", figures={"1:load": {"jobs_failed": 2.0, "jobs_lost": 1.0}})}
    assert found([entry(2.0), entry(1.0)], stages=stages) == [("bad", "Samples"), ("fair", "Workers")]


def test_the_worst_comes_first():
    rising = [entry(1.0 / (i + 1), valid) for i, valid in enumerate((2.0, 1.0, 1.2, 1.5, math.nan, 1.9))]
    assert [level for level, _ in found(rising)] == ["bad", "fair"]


def test_the_share_waited_is_by_time_and_without_the_start():
    epochs = [
        entry(1.0, wait_s=9.0, time_s=10.0, samples_per_s=1.0),
        entry(1.0, wait_s=1.0, time_s=2.0, samples_per_s=10.0),
        entry(1.0, wait_s=1.0, time_s=8.0, samples_per_s=20.0),
    ]
    assert loop_wait(record(epochs)) == (0.2, "loop")
    assert loop_wait(record(epochs[:1])) == (0.9, "loop")
    assert loop_wait(record([entry(1.0)])) is None
    assert mean_speed(record(epochs), "train") == 15.0


def test_the_main_metric_is_of_a_split_that_is_not_trained_on_and_not_the_loss():
    splits = {
        "train": {"overall_loss": {"loss": 1.0}, "y": {"error": 1.0}},
        "valid": {"overall_loss": {"loss": 1.0}, "y": {"error": 1.0, "dice": 1.0}},
        "test": {"overall_loss": {"loss": 1.0}, "y": {"error": 1.0}},
    }
    assert main_metric(record([{"d": splits}])) == ("d", "valid", "y", "error")
    assert main_metric(record([entry(1.0, 2.0)])) == ("d", "valid", "overall_loss", "loss")
    assert main_metric(record([entry(1.0)])) == ("d", "train", "overall_loss", "loss")
    assert main_metric(record([])) is None


def test_the_best_epoch_is_by_the_direction_of_the_metric():
    epochs = [{"d": {"v": {"y": {"dice": value, "error": value}}}} for value in (0.5, 0.75, math.nan, 0.25)]
    assert best_of(record(epochs), ("d", "v", "y", "dice")) == (1, 0.75)
    assert best_of(record(epochs), ("d", "v", "y", "error")) == (3, 0.25)
    assert best_of(record(epochs), ("d", "v", "y", "absent")) is None
