"""What TensorBoard shows of a training: `tensorboard --logdir <folder of the runs>`."""

from __future__ import annotations

from trw_pipeline.callbacks.row_log import RowLog
from trw_pipeline.reporting.row_files import EventFile


class CallbackTensorboardRecordHistory(RowLog):
    """Writes the numbers of each epoch for TensorBoard: `<run folder>/tensorboard/events.out.tfevents.history`.

    The scalars have the names of the columns of `CallbackTrainLog`, and the epoch, from 0, as their step. After each
    epoch they are on the disk; the final evaluation is no epoch and has none. A resumed training goes on in the file,
    in which each epoch is once; a TensorBoard that read the file meanwhile has to be started again.

    Needs the extra `tensorboard`: `MissingExtraError` before the first epoch.
    """

    def __init__(self) -> None:
        super().__init__("tensorboard/events.out.tfevents.history", EventFile)
