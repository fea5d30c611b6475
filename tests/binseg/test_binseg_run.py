import math
import shutil

import pytest
import torch
from torch import nn
from toy_binseg import (
    CPU,
    CRITERION,
    Training,
    batches,
    header_of,
    log_of,
    new_model,
    same_weights,
    saved,
    without_times,
)

import trw_pipeline
from trw_pipeline import binseg, resources

FILES = ["constants.csv", "model_summary.txt", "trainlog.csv"]
CHECKPOINTS = ["last_checkpoint", "model_final_epoch.pth", "model_lowest_valid_loss.pth", "model_periodic_save.pth"]


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """A sample of resources is waited for however busy the machine is."""
    monkeypatch.setattr(resources, "_SAMPLE_S", 60.0)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_training_writes_the_documented_files_and_columns(tmp_path):
    """T16."""
    Training(tmp_path / "with").run(2, extras=[batches(3), batches(4)])
    assert names(tmp_path / "with") == sorted(FILES + CHECKPOINTS)
    fields = binseg.create_logfile_fields([1], [[1]], CPU)
    assert tuple(header_of(tmp_path / "with" / "trainlog.csv")) == fields
    assert len(fields) == 13
    rows = log_of(tmp_path / "with")
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert all(row[name] for row in rows for name in fields)
    assert all(float(row["cpu_rss"]) > 0 and float(row["cpu_memory_used"]) > 0 for row in rows)
    Training(tmp_path / "less").run(2, valid=False, period=0)
    assert names(tmp_path / "less") == sorted([*FILES, "last_checkpoint", "model_final_epoch.pth"])
    assert len(header_of(tmp_path / "less" / "trainlog.csv")) == 11


def test_a_row_tells_of_its_own_epoch(tmp_path):
    """T10, T11: the rate that the epoch was trained with; losses by sample; extra losses in their order."""
    extras = [batches(3, seed=2), batches(5, seed=3)]
    training = Training(tmp_path, rate=1e-7).run(3, extras=extras)
    rows = log_of(tmp_path)
    assert [float(row["learning_rate"]) for row in rows] == pytest.approx([1e-7, 0.9e-7, 0.81e-7], rel=1e-9)
    again = [binseg.validate_epoch(loader, training.model, CPU, CRITERION, "x") for loader in extras]
    assert rows[-1]["extra_validation_losses"] == f"[{again[0]!r} {again[1]!r}]"
    assert float(rows[-1]["validation_loss"]) == binseg.validate_epoch(
        training.valid_loader, training.model, CPU, CRITERION, "x"
    )


class Falls(nn.Module):
    """A model whose validation loss in each epoch is planned."""

    def __init__(self, losses):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.losses, self.nb_done = losses, 0
        self.register_buffer("epoch", torch.zeros((), dtype=torch.long))

    def forward(self, images):
        if self.training:
            self.epoch += 1
            return 0 * self.weight + images
        return torch.full_like(images, self.losses[int(self.epoch) - 1])


def planned(folder, losses, max_epoch, period=1):
    model = Falls(losses)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    checkpointer = binseg.Checkpointer(model, optimizer, path=folder)
    one = [(["a"], torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))]
    binseg.run(
        model,
        one,
        one,
        [],
        optimizer,
        lambda output, target: (output - target).mean(),
        None,
        checkpointer,
        period,
        CPU,
        {"epoch": 0, **checkpointer.load(), "max_epoch": max_epoch},
        folder,
        3600,
        1,
    )


@pytest.mark.parametrize("stops", [[5], [3, 5], [1, 2, 3, 4, 5]])
@pytest.mark.parametrize("losses", [[2.0, 3.0, 2.0, 4.0, 5.0], [math.nan, 3.0, 2.0, 2.0, math.nan]])
def test_the_best_model_is_that_of_the_first_lowest_loss_wherever_the_training_was_stopped(tmp_path, losses, stops):
    """T17, T18."""
    for max_epoch in stops:
        planned(tmp_path, losses, max_epoch)
    rows = log_of(tmp_path)
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [float(row["validation_loss"]) for row in rows] == pytest.approx(losses, nan_ok=True)
    assert saved(tmp_path, "model_lowest_valid_loss")["epoch"] == losses.index(2.0) + 1


def test_the_best_model_gives_its_loss_again(tmp_path):
    """T17."""
    Training(tmp_path, rate=0.9, dropout=0.5).run(6)
    losses = [float(row["validation_loss"]) for row in log_of(tmp_path)]
    best = saved(tmp_path, "model_lowest_valid_loss")
    assert best["epoch"] == losses.index(min(losses)) + 1
    model = new_model()
    model.load_state_dict(best["model"])
    loss = binseg.validate_epoch(Training(tmp_path).valid_loader, model, CPU, CRITERION, "again")
    assert loss == pytest.approx(min(losses), abs=1e-6)


@pytest.mark.parametrize(
    "nb_workers", [0, *(pytest.param(nb_workers, marks=pytest.mark.slow) for nb_workers in (1, 2))]
)
def test_a_training_that_goes_on_is_one_that_never_stopped(tmp_path, nb_workers):
    """T22: with dropout, shuffling, and augmentation by the global generator, in workers too."""
    settings = {"dropout": 0.5, "noise": 0.5, "nb_workers": nb_workers}
    whole = Training(tmp_path / "whole", **settings).run(4)
    Training(tmp_path / "parts", **settings).run(1)
    torch.manual_seed(99)
    parts = Training(tmp_path / "parts", **settings).run(4)
    assert same_weights(whole.model, parts.model)
    assert without_times(log_of(tmp_path / "whole")) == without_times(log_of(tmp_path / "parts"))
    one, other = (saved(tmp_path / name, "model_final_epoch") for name in ("whole", "parts"))
    assert same_weights(one["model"], other["model"])
    assert one["epoch"] == other["epoch"] == one["max_epoch"] == 4


def test_rows_after_the_checkpoint_are_written_again_and_not_twice(tmp_path):
    """The training ends between its row and its checkpoint."""

    class FailsAt3(binseg.Checkpointer):
        def save(self, name, **data):
            if data["epoch"] == 3:
                raise OSError("disk full")
            super().save(name, **data)

    def failing(training):
        return FailsAt3(training.model, training.optimizer, training.scheduler, training.folder)

    whole = Training(tmp_path / "whole", dropout=0.5).run(4)
    with pytest.raises(OSError, match="disk full"):
        Training(tmp_path / "parts", dropout=0.5, checkpointer=failing).run(4)
    assert len(log_of(tmp_path / "parts")) == 3
    parts = Training(tmp_path / "parts", dropout=0.5).run(4)
    assert without_times(log_of(tmp_path / "whole")) == without_times(log_of(tmp_path / "parts"))
    assert same_weights(whole.model, parts.model)


def test_a_new_training_keeps_the_log_of_an_older_one_and_one_that_goes_on_has_no_backup(tmp_path):
    """T24."""
    Training(tmp_path).run(2)
    older = (tmp_path / "trainlog.csv").read_bytes()
    Training(tmp_path).run(3)
    assert "trainlog.csv~" not in names(tmp_path)
    assert len(log_of(tmp_path)) == 3
    Training(tmp_path).run(1, go_on=False)
    assert (tmp_path / "trainlog.csv~").read_bytes().startswith(older)
    assert len(log_of(tmp_path, "trainlog.csv~")) == 3
    assert len(log_of(tmp_path)) == 1
    assert [name for name in names(tmp_path) if name.endswith("~")] == ["constants.csv~", "trainlog.csv~"]


class Timed(list):
    """Batches that take a planned time on a clock of their own."""

    def __init__(self, batches, epoch_s):
        super().__init__(batches)
        self.epoch_s, self.now = epoch_s, 1000.0

    def __iter__(self):
        self.now += self.epoch_s
        return super().__iter__()


def seconds(text):
    hours, minutes, rest = map(int, text.split(":"))
    return 3600 * hours + 60 * minutes + rest


def test_the_time_left_is_that_of_the_epochs_left_and_the_total_time_goes_on(tmp_path):
    """T25: two epochs of 100 s, and three after a pause."""
    for max_epoch in (2, 5):
        loader = Timed(batches(4), 100.0)
        Training(tmp_path, loader=loader).run(max_epoch, clock=lambda loader=loader: loader.now)
    rows = log_of(tmp_path)
    assert [seconds(row["total_time"]) for row in rows] == [100, 200, 300, 400, 500]
    assert [seconds(row["eta"]) for row in rows] == [100, 0, 200, 100, 0]


def test_a_training_that_is_finished_writes_its_final_checkpoint_and_nothing_else(tmp_path):
    """A kill may have come after the other checkpoints of the last epoch."""
    trained = Training(tmp_path).run(2)
    (tmp_path / "model_final_epoch.pth").unlink()
    (tmp_path / "last_checkpoint").write_text("model_periodic_save.pth")
    others = {name: (tmp_path / name).read_bytes() for name in FILES}
    Training(tmp_path).run(2)
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == others
    assert names(tmp_path) == sorted(FILES + CHECKPOINTS)
    final = saved(tmp_path, "model_final_epoch")
    assert same_weights(final["model"], trained.model)
    assert final["epoch"] == final["max_epoch"] == 2


def test_a_training_of_no_epochs_writes_nothing(tmp_path):
    run_plainly(tmp_path / "new", arguments={"epoch": 0, "max_epoch": 0})
    assert not (tmp_path / "new").exists()


class Foreign:
    """Of the same shape, and with files of its own."""

    def __init__(self, training):
        self.parts = {name: getattr(training, name) for name in ("model", "optimizer", "scheduler")}
        self.folder = training.folder

    def save(self, name, **data):
        self.folder.mkdir(exist_ok=True)
        states = {part: thing.state_dict() for part, thing in self.parts.items()}
        torch.save({**states, **data}, self.folder / "theirs.pt")

    def load(self):
        path = self.folder / "theirs.pt"
        if not path.exists():
            return {}
        data = torch.load(path, weights_only=True)
        for part, thing in self.parts.items():
            thing.load_state_dict(data.pop(part))
        return data


def test_a_checkpointer_of_the_same_shape_serves_as_well(tmp_path):
    whole = Training(tmp_path / "whole", dropout=0.5).run(4)
    for max_epoch in (2, 4):
        parts = Training(tmp_path / "parts", dropout=0.5, checkpointer=Foreign).run(max_epoch)
    assert same_weights(whole.model, parts.model)
    assert without_times(log_of(tmp_path / "whole")) == without_times(log_of(tmp_path / "parts"))
    assert names(tmp_path / "parts") == sorted(["constants.csv~", *FILES, "theirs.pt"])


def run_plainly(folder, **changes):
    model = new_model()
    arguments = {
        "model": model,
        "data_loader": batches(4),
        "valid_loader": None,
        "extra_valid_loaders": [],
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "criterion": CRITERION,
        "scheduler": None,
        "checkpointer": None,
        "checkpoint_period": 1,
        "device": CPU,
        "arguments": {"epoch": 0, "max_epoch": 1},
        "output_folder": folder,
        "monitoring_interval": 3600,
        "batch_chunk_count": 1,
    }
    binseg.run(**arguments | changes)


def test_without_a_checkpointer_there_is_the_log_alone(tmp_path):
    run_plainly(str(tmp_path / "new"))
    assert names(tmp_path / "new") == FILES


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"arguments": {"epoch": 0}}, TypeError, "max_epoch must be an int, got None"),
        ({"arguments": {"epoch": -1, "max_epoch": 1}}, ValueError, "epoch must not be negative, got -1"),
        ({"arguments": 3}, TypeError, "arguments must be a mapping"),
        ({"checkpoint_period": -1}, ValueError, "checkpoint_period must not be negative, got -1"),
        ({"batch_chunk_count": 0}, ValueError, "must be at least 1, got 0"),
        ({"monitoring_interval": 0}, ValueError, "monitoring_interval must be positive and finite, got 0"),
        ({"checkpointer": 3}, TypeError, "a checkpointer must have save"),
        ({"device": torch.device("cuda:99")}, ValueError, "got cuda:99"),
    ],
)
def test_an_argument_that_is_wrong_is_refused_before_any_file(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        run_plainly(tmp_path / "new", **changes)
    assert not (tmp_path / "new").exists()


def test_a_scheduler_that_wants_a_metric_follows_the_validation_loss(tmp_path):
    """The loss stays as it is, so the rate is cut after each epoch but the first."""
    model = new_model()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    weight = nn.Parameter(torch.zeros(1))
    model.register_parameter("unused", weight)
    optimizer = torch.optim.SGD([weight], 1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    changes = {"model": model, "optimizer": optimizer, "scheduler": plateau}
    with pytest.raises(ValueError, match="got no valid_loader"):
        run_plainly(tmp_path / "without", **changes)
    assert not (tmp_path / "without").exists()

    def criterion(output, target):
        return CRITERION(output, target) + 0 * weight.sum()

    more = {"valid_loader": batches(4), "criterion": criterion, "arguments": {"epoch": 0, "max_epoch": 4}}
    run_plainly(tmp_path / "with", **changes, **more)
    assert [float(row["learning_rate"]) for row in log_of(tmp_path / "with")] == [1.0, 1.0, 0.5, 0.25]


def test_an_error_leaves_the_rows_of_the_epochs_before_and_no_thread(tmp_path):
    class Fails(list):
        def __iter__(self):
            self.nb_epochs = getattr(self, "nb_epochs", 0) + 1
            if self.nb_epochs == 3:
                raise OSError("disk gone")
            return super().__iter__()

    with pytest.raises(OSError, match="disk gone"):
        Training(tmp_path, loader=Fails(batches(4))).run(5)
    assert [row["epoch"] for row in log_of(tmp_path)] == ["1", "2"]


def test_a_log_that_is_gone_begins_anew_where_the_training_goes_on(tmp_path):
    Training(tmp_path).run(2)
    (tmp_path / "trainlog.csv").unlink()
    Training(tmp_path).run(3)
    assert [row["epoch"] for row in log_of(tmp_path)] == ["3"]


def test_a_log_keeps_its_columns_where_the_training_goes_on_without_some(tmp_path):
    Training(tmp_path).run(2, extras=[batches(3)])
    Training(tmp_path).run(3)
    rows = log_of(tmp_path)
    assert rows[-1]["extra_validation_losses"] == ""
    assert float(rows[-1]["cpu_rss"]) > 0


def test_what_goes_on_in_a_copy_of_the_folder_is_the_same(tmp_path):
    """Nothing in the files says where they were."""
    Training(tmp_path / "one", dropout=0.5).run(2)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    models = [Training(tmp_path / name, dropout=0.5).run(4).model for name in ("one", "two")]
    assert same_weights(*models)


def test_the_module_has_the_documented_names_and_no_other():
    assert sorted(binseg.__all__) == binseg.__all__
    assert trw_pipeline.binseg is binseg
    documented = (
        "check_exist_logfile check_gpu checkpointer_process create_logfile_fields run save_model_summary "
        "static_information_to_csv torch_evaluation train_epoch validate_epoch write_log_info"
    )
    assert set(binseg.__all__) == {"Checkpointer", *documented.split()}
