"""The training of bob.ip.binseg: its functions, files and columns, on the parts of this package.

The names, arguments and files are those of `bob.ip.binseg.engine.trainer`; nothing else of it is here. What is better:

- a loss is the mean over samples, however they were cut into batches;
- the gradient of a group of chunks is that of all its samples at once, also where the last group is smaller;
- a training that was killed goes on as if it had never stopped: same weights, same rows, same best model;
- figures of resources take milliseconds an epoch, and are never made up.
"""

from trw_pipeline.binseg.checkpoints import Checkpointer, checkpointer_process
from trw_pipeline.binseg.epochs import torch_evaluation, train_epoch, validate_epoch
from trw_pipeline.binseg.information import check_gpu, save_model_summary, static_information_to_csv
from trw_pipeline.binseg.logfile import check_exist_logfile, create_logfile_fields, write_log_info
from trw_pipeline.binseg.training import run

__all__ = [
    "Checkpointer",
    "check_exist_logfile",
    "check_gpu",
    "checkpointer_process",
    "create_logfile_fields",
    "run",
    "save_model_summary",
    "static_information_to_csv",
    "torch_evaluation",
    "train_epoch",
    "validate_epoch",
    "write_log_info",
]
