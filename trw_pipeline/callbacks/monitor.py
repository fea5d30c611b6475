"""What a training costs, phase by phase."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from trw_pipeline.batches.length import len_batch
from trw_pipeline.files import write_text
from trw_pipeline.nets.gpu_timer import GpuTimer, gpu_timer
from trw_pipeline.reporting.computational_summary import (
    EVALUATED,
    TRAINED,
    WAIT_SHARE,
    computational_summary,
    computational_table,
    gpu_column,
    memory_column,
    time_column,
)
from trw_pipeline.timing import Stopwatch
from trw_pipeline.training.callback import Callback
from trw_pipeline.training.history import INFO
from trw_pipeline.training.laps import DATA, OTHER, Laps

if TYPE_CHECKING:
    from trw_pipeline.training.run import Run

_logger = logging.getLogger(__name__)

Row: TypeAlias = dict[str, "float | None"]

_KINDS = ("Training", "Validation")
_HOST_TO_DEVICE = "host to device"
_PHASES: dict[str, tuple[str, ...]] = {"Training": TRAINED, "Validation": EVALUATED}


class _Pending(NamedTuple):
    """A batch that is done on the host, and perhaps not yet on the device."""

    kind: str
    laps: Laps
    nb_samples: int
    is_measured: bool


class MonitorCallback(Callback):
    """Measures where the time of a training goes, and whether its device waits for data.

    It writes, to the run folder,

    - `logs/computational.tsv`: all measurements, replaced by a longer one at the end of each epoch and of the training;
    - `summary.log`: their means, when the training ends, however it ends.

    | phase | from | to |
    |---|---|---|
    | Training | `on_fit_start` | `on_fit_end`, after the final evaluation |
    | Epoch | `on_epoch_start` | `on_epoch_end` |
    | Training loop (in the summary: Iteration) | end of the batch before | `on_batch_end` |
    | data loading | the loop asks for a batch | the batch is there |
    | host to device | `on_batch_start` | `on_forward_start` |
    | Forward | `on_forward_start` | `on_loss`: heads and loss are in it |
    | Backward | `on_loss` | `on_backward_end` |
    | Optimization | `on_step_start` | `on_step_end`: clipping and clearing are in it |
    | other | what is left of an iteration: callbacks, checkpoints between batches, the loop | |
    | Validation | `on_split_start` | `on_split_end`, of every split that an epoch evaluates |
    | Validation loop (in the summary: Iteration) | end of the batch before | `on_batch_end` |
    | Evaluation | `on_forward_start` | `on_loss` |
    | Metrics computation | `on_loss` | `on_batch_end`: what heads measure is gathered |

    The phases of an iteration add up to it. Other callbacks count into the phase in which they run: those of
    `on_forward_start` into Forward, for example. A training step of one's own is divided where it calls `run.backward`
    and `run.step`. Of the final evaluation only the total is measured.

    The table has the wall time of each phase in seconds; on a CUDA device also the seconds between two marks in its
    work at start and end of the phase, and the most memory in MB that tensors took in it, else these columns are empty.
    `samples` are those that were in the batch. `device wait` are the seconds that the device had nothing to do because
    the batch was not there; on a CPU that is the data loading. `Epoch device wait share`, in [0, 1], is that wait over
    the time of the splits that were trained on, and counts all their batches. Row i has the i-th measurement of each
    column; the columns of an iteration are in line.

    Without `sync` nobody waits for the device: its marks are read once it has passed them. The times of the host are
    then what the host did, which may be much less than the work it asked for; those of the GPU are of that work. Each
    phase that is measured begins a new peak of torch's allocator.

    A resumed training goes on with the measurements it had. The time between is not counted, nor are batches needed to
    warm up again.

    Args:
        num_measurements: iterations to measure of each kind; 0: all of them.
        warmup_iterations: batches to train on before the first iteration is measured. Evaluated batches do not count.
        enabled: False: nothing is measured, and no hook called.
        sync: wait for the device at the end of each phase of a measured iteration.

    Raises:
        ValueError: a number is negative.
        TypeError: a number is not an int.
    """

    outer = True

    def __init__(
        self, num_measurements: int = 100, warmup_iterations: int = 10, enabled: bool = True, *, sync: bool = False
    ) -> None:
        for name, value in (("num_measurements", num_measurements), ("warmup_iterations", warmup_iterations)):
            if not isinstance(value, int) or isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"{name} must be an int, got {value!r}")
            if value < 0:
                raise ValueError(f"{name} must be at least 0, got {value}")
        self.num_measurements = num_measurements
        self.warmup_iterations = warmup_iterations
        self.enabled = enabled
        self.sync = sync
        self._clock: Callable[[], float] | None = None  # of the training that runs
        self._gpu: GpuTimer | None = None
        self._folder = Path()
        self._begin()

    def _begin(self) -> None:
        self._nb_iterations = 0
        self._nb_measured = dict.fromkeys(_KINDS, 0)
        self._rows: dict[str, list[Row]] = {"epochs": [], "validations": [], **{kind: [] for kind in _KINDS}}
        self._gpu_names: list[str] = []
        self._training = Stopwatch()
        self._begin_epoch(None)
        self._waited_s = 0.0  # of the split, when its newest batch was there
        self._laps: Laps | None = None  # of the batch at work
        self._is_measured = False
        self._pending: deque[_Pending] = deque()

    def _begin_epoch(self, epoch: int | None) -> None:
        self._epoch = epoch  # the one whose row is still to come
        self._epoch_time = Stopwatch()
        self._device_wait_s = 0.0  # of the splits of the epoch that are trained on, like the next
        self._trained_s = 0.0

    @property
    def n_iterations(self) -> int:
        """Batches that were trained on so far."""
        return self._nb_iterations

    def on_fit_start(self, run: Run) -> None:
        """Begin to measure the training."""
        assert run.log_dir is not None, "a training in a folder"
        if not run.resumed:
            self._begin()
        self._folder = run.log_dir
        self._clock = run.clock
        self._gpu = gpu_timer(run.device)
        self._start(run.clock)

    def on_epoch_start(self, run: Run) -> None:
        """Begin to measure an epoch, or go on with one that a checkpoint has begun."""
        self._end_epoch(run)
        if self._epoch is None:
            self._begin_epoch(run.epoch)
        self._epoch_time.start(run.clock)

    def on_split_start(self, run: Run) -> None:
        """The loop goes for the first batch."""
        self._waited_s = run.wait_s  # more than nothing where a checkpoint was made within the split
        self._begin_iteration(run)

    def on_batch_start(self, run: Run) -> None:
        """The batch is there."""
        waited_s, self._waited_s = run.wait_s - self._waited_s, run.wait_s
        if self._gpu is None and run.training:
            self._device_wait_s += waited_s  # host and device are one
        if self._laps is None:
            return
        self._laps.arrive(waited_s)
        if not self._is_measured:  # only the wait for data, which is known of every batch
            self._end_iteration(run)

    def on_forward_start(self, run: Run) -> None:
        """The batch is on the device."""
        self._lap(_HOST_TO_DEVICE)

    def on_loss(self, run: Run) -> None:
        """The batch is judged."""
        self._lap("Forward" if run.training else "Evaluation")

    def on_backward_end(self, run: Run) -> None:
        """Its gradients are there."""
        self._lap("Backward")

    def on_step_start(self, run: Run) -> None:
        """A step begins."""
        self._lap(OTHER)

    def on_step_end(self, run: Run) -> None:
        """It ends."""
        self._lap("Optimization")

    def on_batch_end(self, run: Run) -> None:
        """The batch is done, and the loop goes for the next one."""
        self._lap(OTHER if run.training else "Metrics computation")
        self._end_iteration(run)
        self._nb_iterations += run.training
        self._begin_iteration(run)

    def on_split_end(self, run: Run) -> None:
        """Note how long the split took, with what came before a checkpoint."""
        self._laps = None
        if run.is_final:
            return
        time_s = run.history[-1][run.dataset][run.split][INFO]["time_s"]
        if run.training:
            self._trained_s += time_s
        else:
            self._rows["validations"].append({"Validation (s)": time_s})

    def on_epoch_end(self, run: Run) -> None:
        """Write the measurements."""
        self._end_epoch(run)
        self._write_table()

    def on_fit_end(self, run: Run) -> None:
        """Write the measurements, and what they come to."""
        if self._clock is None:
            _logger.warning("nothing was measured: a MonitorCallback belongs into the list of each epoch")
            return
        self._end_epoch(run)
        self._end(run, f"Training completed after {run.nb_epochs_done} epochs")

    def on_exception(self, run: Run) -> None:
        """Write what was measured; the device is not asked any more, since it may be what failed."""
        self._pending.clear()
        if self._clock is not None:
            self._end_epoch(run)
            self._end(run, f"Training interrupted after {run.nb_epochs_done} epochs")

    def state_dict(self) -> dict[str, Any]:
        """Give all measurements; what the device has yet to pass is waited for, as it is for the state of the model."""
        self._read(wait=True)
        return {
            "nb_iterations": self._nb_iterations,
            "nb_measured": dict(self._nb_measured),
            "rows": {kind: [dict(row) for row in rows] for kind, rows in self._rows.items()},
            "gpu_names": list(self._gpu_names),
            "training_s": self._training.elapsed_s,
            "epoch": self._epoch,
            "epoch_s": self._epoch_time.elapsed_s,
            "device_wait_s": self._device_wait_s,
            "trained_s": self._trained_s,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them back. The time until now is not counted."""
        self._begin()
        self._nb_iterations = state["nb_iterations"]
        self._nb_measured = dict(state["nb_measured"])
        self._rows = {kind: [dict(row) for row in rows] for kind, rows in state["rows"].items()}
        self._gpu_names = list(state["gpu_names"])
        self._training = Stopwatch(state["training_s"])
        self._begin_epoch(state["epoch"])
        self._epoch_time = Stopwatch(state["epoch_s"])
        self._device_wait_s, self._trained_s = state["device_wait_s"], state["trained_s"]
        if self._clock is not None:
            self._start(self._clock)

    def _start(self, clock: Callable[[], float]) -> None:
        self._training.start(clock)
        if self._gpu is not None and self._gpu_names[-1:] != [self._gpu.name]:
            self._gpu_names.append(self._gpu.name)

    def _begin_iteration(self, run: Run) -> None:
        kind = _KINDS[not run.training]
        is_left = not self.num_measurements or self._nb_measured[kind] < self.num_measurements
        self._is_measured = not run.is_final and is_left and self._nb_iterations >= self.warmup_iterations
        # How long a GPU waits is measured of every batch that is trained on.
        wanted = self._is_measured or (run.training and self._gpu is not None)
        self._laps = Laps(run.clock, self._gpu, self.sync) if wanted else None

    def _lap(self, phase: str) -> None:
        if self._laps is not None:
            self._laps.lap(phase)

    def _end_iteration(self, run: Run) -> None:
        laps, self._laps = self._laps, None
        if laps is None:
            return
        kind = _KINDS[not run.training]
        self._nb_measured[kind] += self._is_measured
        nb_samples = len_batch(run.batch) if self._is_measured else 0
        self._pending.append(_Pending(kind, laps, nb_samples, self._is_measured))
        self._read()

    def _read(self, wait: bool = False) -> None:
        """Makes rows of the batches that the device has done, in their order."""
        while self._pending and (wait or self._pending[0].laps.is_passed):
            kind, laps, nb_samples, is_measured = self._pending.popleft()
            laps.wait()
            device_wait_s = laps.device_wait_s()
            if kind == "Training" and self._gpu is not None:
                self._device_wait_s += device_wait_s
            if is_measured:
                self._rows[kind].append(_row(kind, laps, device_wait_s, nb_samples))

    def _end_epoch(self, run: Run) -> None:
        """Makes the row of the epoch, if it is over: also if that was in a checkpoint made before us at its end."""
        if self._epoch is None or self._epoch >= run.nb_epochs_done:
            return
        # The figures of its splits are read, so the device has done all batches: nobody is kept waiting.
        self._read(wait=True)
        share = min(self._device_wait_s / self._trained_s, 1.0) if self._trained_s > 0 else None
        self._rows["epochs"].append({"Epoch (s)": self._epoch_time.elapsed_s, WAIT_SHARE: share})
        self._begin_epoch(None)

    def _end(self, run: Run, how: str) -> None:
        self._training.stop()
        self._epoch_time.stop()
        self._write_table()
        trained, validated = _nb_samples(run)
        lines = [
            " Training ".center(40, "="),
            f"Date: {datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}",
            f"Trained with {trained} samples",
            f"Validated on {validated} samples",
            "",
            computational_summary(self._measured(), self._gpu_names),
            how,
            "",
        ]
        write_text(self._folder / "summary.log", "\n".join(lines))
        self._clock = None

    def _write_table(self) -> None:
        folder = self._folder / "logs"
        folder.mkdir(exist_ok=True)
        write_text(folder / "computational.tsv", computational_table(self._measured()))

    def _measured(self) -> dict[str, list[float | None]]:
        """The measurements by column."""
        measured: dict[str, list[float | None]] = {"Training (s)": [self._training.elapsed_s]}
        for rows in self._rows.values():
            columns = dict.fromkeys(column for row in rows for column in row)
            measured |= {column: [row.get(column) for row in rows] for column in columns}
        return measured


def _row(kind: str, laps: Laps, device_wait_s: float, nb_samples: int) -> Row:
    """The measurements of an iteration by column."""
    gpu_s = laps.gpu_seconds()
    row: Row = {
        time_column(f"{kind} loop"): laps.total_s,
        time_column(f"{kind} device wait"): device_wait_s,
        f"{kind} samples": nb_samples,
    }
    for phase in (DATA, _HOST_TO_DEVICE, OTHER, *_PHASES[kind]):
        name = phase if phase in _PHASES[kind] else f"{kind} {phase}"
        row[time_column(name)] = laps.seconds.get(phase)
        row[gpu_column(name)] = gpu_s.get(phase)
        row[memory_column(name)] = laps.peaks_mb.get(phase)
    return row


def _nb_samples(run: Run) -> tuple[int, int]:
    """Samples that the first epoch trained with, and that it evaluated; it always evaluates, and others may not."""
    trained = validated = 0
    for dataset, splits in (run.history[0] if run.history and run.epochs else {}).items():
        for split, measured in splits.items():
            nb_samples = int(measured.get(INFO, {}).get("nb_samples", 0))
            is_trained = split == run.options["workflow_options"]["train_split"] and dataset in (run.optimizers or {})
            trained, validated = trained + nb_samples * is_trained, validated + nb_samples * (not is_trained)
    return trained, validated
