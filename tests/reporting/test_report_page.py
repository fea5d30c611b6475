import html
import re

import pytest

from trw_pipeline.reporting.computational_summary import computational_table
from trw_pipeline.reporting.report import report_page, write_report
from trw_pipeline.reporting.run_record import RunRecord, Stages

EVIL = "<script>x</script>&"


def entry(loss, error):
    of_loop = {"nb_samples": 8.0, "time_s": 2.0, "samples_per_s": 4.0, "wait_s": 0.5, "wait_share": 0.25}
    metrics = {"overall_loss": {"loss": loss}, "y": {"error": error}, "info": of_loop, "resources": {"cpu_rss": 0.5}}
    return {"d": {"train": metrics, "valid": metrics}}


def record(**changed):
    given = {
        "name": "run_r0",
        "state": "completed",
        "updated": 0.0,
        "started": 0.0,
        "elapsed_s": 8.0,
        "nb_epochs": 2,
        "epochs": [entry(2.0, 0.5), entry(1.0, 0.25)],
        "final": entry(1.0, 0.125),
        "learning_rates": [{"d": 0.1}, {"d": 0.01}],
        "stages": {
            "d/train": Stages(limit="load limits.", description="Array", figures={"0:Array": {"epoch_items": 8.0}})
        },
        "model": [("", "Net", 1234, 1000), ("a", "Linear(1, 2)", 1234, 1000)],
        "options": {"training_parameters.num_epochs": "2"},
        "versions": {"torch": "2.13.0"},
    }
    return RunRecord(**{**given, **changed})


def shown(page):
    """The text of a page, as a person reads it."""
    page = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def headings(page):
    return re.findall(r"<section [^>]*><h2>(.*?)</h2>", page)


def test_the_page_has_every_part_that_the_run_has(tmp_path):
    page = report_page(record(), tmp_path)
    assert headings(page) == [
        "Curves",
        "Metrics",
        "Speed",
        "Stages",
        "Resources",
        "Model",
        "Configuration",
        "Versions",
    ]
    for anchor in re.findall(r'href="#(\w+)"', page):
        assert f'id="{anchor}"' in page


def test_what_a_run_has_not_is_not_on_its_page(tmp_path):
    bare = RunRecord(name="r", state="running", updated=0.0, nb_epochs=5, epochs=[])
    page = report_page(bare, tmp_path)
    assert headings(page) == []
    assert "Running" in shown(page)
    assert "0 of 5 epochs" in shown(page)


def test_the_head_says_in_a_glance_how_it_went(tmp_path):
    text = shown(report_page(record(), tmp_path)).partition("Curves")[0]
    assert "Completed 2 epochs 8 s" in text
    assert "d · valid · y · error 0.125 best in epoch 1: 0.25" in text, "the final evaluation, and the best epoch"
    assert "The loop waited for data 25 % of the time of training" in text
    assert "Training speed 4 samples/s an epoch takes 4 s" in text
    assert "Needs attention 1 finding" in text
    assert "The loop waited for data 25 % of the time of training. load limits." in text


def test_what_the_device_waited_counts_where_it_was_measured(tmp_path):
    (tmp_path / "logs").mkdir()
    table = computational_table({"Epoch device wait share": [0.9, 0.01]})
    (tmp_path / "logs" / "computational.tsv").write_text(table)
    text = shown(report_page(record(), tmp_path)).partition("Curves")[0]
    assert "The device waited for data 1.0 %" in text
    assert "Nothing conspicuous" in text


def test_the_table_of_metrics_tells_first_last_best_and_final(tmp_path):
    text = shown(report_page(record(), tmp_path))
    assert "metric split better first last best in epoch final" in text
    assert "y · error d · valid lower 0.5 0.25 0.25 1 0.125" in text


@pytest.mark.parametrize(
    ("changed", "says", "is_read_again"),
    [
        ({"state": "running", "nb_epochs": 4}, "Running 2 of 4 epochs 8 s about 8 s to go", True),
        ({"state": "completed", "nb_epochs": 4}, "Stopped early 2 of 4 epochs", False),
        ({"state": "interrupted", "error": "OSError: full"}, "interrupted after 2 epochs: OSError: full", False),
        ({"state": "unknown", "started": None, "elapsed_s": None}, "Read from a log 2 epochs d", False),
    ],
)
def test_the_state_is_told_and_only_a_running_page_is_read_again(tmp_path, changed, says, is_read_again):
    page = report_page(record(**changed), tmp_path)
    assert says in shown(page)
    assert ('http-equiv="refresh"' in page) == is_read_again
    assert ("data-updated=" in page) == is_read_again, "for a run that is killed"


def test_nothing_that_comes_from_data_is_obeyed(tmp_path):
    epochs = [{EVIL: {EVIL: {EVIL: {EVIL: value}, "info": {"time_s": 1.0}}}} for value in (2.0, 1.0)]
    evil = record(
        name=EVIL,
        error=EVIL,
        state="interrupted",
        epochs=epochs,
        final=epochs[0],
        learning_rates=[{EVIL: 0.1}],
        stages={EVIL: Stages(limit=EVIL, description=EVIL, figures={EVIL: {"epoch_items": 1.0}})},
        model=[(EVIL, EVIL, 1, 1), (EVIL, EVIL, 1, 1)],
        options={EVIL: EVIL},
        versions={EVIL: EVIL},
    )
    (tmp_path / "a&-report.txt").write_text(EVIL)
    page = report_page(evil, tmp_path)
    assert page.count("<script") == page.count("</script>") == 1
    assert page.count("&lt;script&gt;") > 20


def test_a_report_of_classification_can_be_read_as_it_is(tmp_path):
    (tmp_path / "y-d-valid-report.txt").write_text("class  recall\n<cat>  0.5\n")
    page = report_page(record(), tmp_path)
    assert "Classification" in headings(page)
    assert "class  recall\n&lt;cat&gt;  0.5\n</pre>" in page


def test_a_summary_of_the_model_is_shown_with_it(tmp_path):
    (tmp_path / "model_summary.txt").write_text("layer  FLOPs\n<a>  12\n")
    page = report_page(record(), tmp_path)
    assert "Shapes and operations</summary>" in page
    assert "&lt;a&gt;  12" in page


def test_the_page_of_a_folder_is_made_of_what_is_there(tmp_path):
    record().write(tmp_path)
    path = write_report(tmp_path)
    assert path == tmp_path / "report.html"
    assert "run_r0" in shown(path.read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match=r"must have report\.json"):
        write_report(tmp_path / "absent")


@pytest.mark.slow
def test_of_a_very_long_training_the_page_stays_small(tmp_path):
    many = [entry(1.0 / (i + 1), 0.5) for i in range(3000)]
    page = report_page(record(epochs=many, nb_epochs=3000, final=None, learning_rates=[]), tmp_path)
    assert len(page) < 1_000_000
    assert "the last 200" in page
