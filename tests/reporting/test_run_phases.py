import re

from trw_pipeline.reporting.computational_summary import computational_table
from trw_pipeline.reporting.run_phases import device_wait, phases_part, read_measurements

MEASURED = {
    "Training data loading (s)": [0.01, 0.03],
    "Forward (s)": [0.06],
    "Training loop (s)": [0.1],
    "Epoch device wait share": [0.9, 0.25, 0.75],
}


def written(folder, measured):
    (folder / "logs").mkdir()
    (folder / "logs" / "computational.tsv").write_text(computational_table(measured))
    return read_measurements(folder)


def test_phases_are_shown_by_their_share_of_an_iteration(tmp_path):
    part = phases_part(written(tmp_path, MEASURED))
    assert re.findall(r"width:([\d.]+)%", part) == ["25.00", "75.00"], "0.02 and 0.06 s"
    assert "data loading 25 %" in part
    assert "forward 75 %" in part
    assert 'data-key="0.02">20<' in part, "in milliseconds"


def test_the_wait_of_the_device_is_its_mean_without_the_start(tmp_path):
    assert device_wait(written(tmp_path, MEASURED)) == (0.5, "device")
    assert device_wait({"Epoch device wait share": [0.9]}) == (0.9, "device")


def test_without_measurements_there_is_no_such_part(tmp_path):
    assert read_measurements(tmp_path) == {}
    assert device_wait({}) is None
    assert phases_part({}) is None
    assert phases_part(written(tmp_path, {"Training (s)": [1.0]})) is None
