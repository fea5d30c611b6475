import csv
import io

import pytest
import torch
from toy_binseg import header_of

from trw_pipeline import binseg

CPU_COLUMNS = ("cpu_memory_used", "cpu_rss", "cpu_vms", "cpu_percent", "cpu_processes", "cpu_open_files")
GPU_COLUMNS = ("gpu_memory_used", "gpu_memory_free", "gpu_memory_percent", "gpu_percent")
FIRST = ("epoch", "total_time", "eta", "loss", "learning_rate")


def test_the_columns_of_each_kind_of_training():
    """T16."""
    fields = binseg.create_logfile_fields
    cpu = torch.device("cpu")
    assert fields([1], [[2]], cpu) == (*FIRST, "validation_loss", "extra_validation_losses", *CPU_COLUMNS)
    assert fields(None, [], cpu) == fields(None, None, cpu) == (*FIRST, *CPU_COLUMNS)
    assert fields([1], [], torch.device("cuda")) == (*FIRST, "validation_loss", *CPU_COLUMNS, *GPU_COLUMNS)


def written(**changes):
    values = {
        "epoch": 3,
        "current_time": 100000.9,
        "eta_seconds": 59.9,
        "loss": 1 / 3,
        "valid_loss": 0.1 + 0.2,
        "extra_valid_losses": (0.1, 1e-9),
        "resource_data": (("cpu_rss", 0.25),),
    }
    values |= changes
    file = io.StringIO()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1e-7)
    fields = binseg.create_logfile_fields([1], [[1]], torch.device("cpu"))
    writer = csv.DictWriter(file, fields, restval="", lineterminator="\n")
    binseg.write_log_info(optimizer=optimizer, logwriter=writer, logfile=file, **values)
    return dict(zip(fields, next(csv.reader([file.getvalue()])), strict=True))


def test_a_row_has_every_number_exactly():
    """T10: a rate of 1e-7 is not printed as 0."""
    row = written()
    assert row["epoch"] == "3"
    assert (row["total_time"], row["eta"]) == ("27:46:40", "0:00:59")
    assert float(row["loss"]) == 1 / 3
    assert float(row["learning_rate"]) == 1e-7
    assert float(row["validation_loss"]) == 0.1 + 0.2
    assert row["extra_validation_losses"] == "[0.1 1e-09]"
    assert row["cpu_rss"] == "0.25"
    assert row["cpu_percent"] == ""


def test_what_is_not_measured_is_blank():
    row = written(valid_loss=None, extra_valid_losses=(), resource_data=())
    assert row["validation_loss"] == row["extra_validation_losses"] == row["cpu_rss"] == ""


def test_the_first_four_values_are_told(caplog):
    caplog.set_level("INFO", "trw_pipeline")
    written(loss=0.5)
    assert caplog.messages == ["epoch: 3 | total_time: 27:46:40 | eta: 0:00:59 | loss: 0.5"]


def test_a_log_of_another_training_is_renamed_and_an_older_one_of_these_goes(tmp_path):
    log, backup = tmp_path / "trainlog.csv", tmp_path / "trainlog.csv~"
    binseg.check_exist_logfile(log, {"epoch": 0})
    backup.write_text("oldest")
    log.write_text("older")
    binseg.check_exist_logfile(log, {"epoch": 0})
    assert backup.read_text() == "older"
    assert not log.exists()


@pytest.mark.parametrize("torn", ["", "1", "4,0.5", "1,0.5", "2,0.1,0.2,"])
def test_a_log_that_goes_on_is_cut_to_the_epochs_that_are_finished(tmp_path, torn):
    """A row that was not written whole may look like one of an earlier epoch."""
    log = tmp_path / "trainlog.csv"
    kept = "epoch,loss,more\n1,0.5,\n2,0.25,\n"
    log.write_text(f"{kept}3,0.125,\n{torn}")
    binseg.check_exist_logfile(log, {"epoch": 2})
    assert log.read_text() == kept
    assert [path.name for path in tmp_path.iterdir()] == ["trainlog.csv"]


def test_constants_are_one_row_and_older_ones_are_kept(tmp_path):
    path = tmp_path / "constants.csv"
    path.write_text("older")
    binseg.static_information_to_csv(path, torch.device("cpu"), 42)
    assert (tmp_path / "constants.csv~").read_text() == "older"
    assert header_of(path) == ["cpu_memory_total", "cpu_count", "model_size"]
    with path.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert float(row["cpu_memory_total"]) > 0.1
    assert int(row["cpu_count"]) >= 1
    assert row["model_size"] == "42"


def test_the_summary_counts_parameters_module_by_module_and_shared_ones_once(tmp_path):
    shared = torch.nn.Linear(2, 3)
    model = torch.nn.Sequential(shared, torch.nn.Sequential(shared, torch.nn.Linear(3, 1, bias=False)))
    text, nb_parameters = binseg.save_model_summary(tmp_path, model)
    assert nb_parameters == 9 + 3
    assert (tmp_path / "model_summary.txt").read_text() == f"{text}\n"
    assert text.splitlines() == [
        "Sequential: 12 parameters",
        "  (0): Linear(in_features=2, out_features=3, bias=True): 9 parameters",
        "  (1): Sequential: 12 parameters",
        "    (0): Linear(in_features=2, out_features=3, bias=True): 9 parameters",
        "    (1): Linear(in_features=3, out_features=1, bias=False): 3 parameters",
        "parameters: 12",
    ]


def test_a_device_that_is_not_there_is_refused():
    binseg.check_gpu(torch.device("cpu"))
    with pytest.raises(ValueError, match=r"got cuda:99"):
        binseg.check_gpu(torch.device("cuda:99"))
