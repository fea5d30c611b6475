"""The head of what is only kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from trw_pipeline.batches.length import holds_samples, len_batch
from trw_pipeline.outputs.output import LossTerm, Output
from trw_pipeline.typing import Batch


class OutputRecord(Output):
    """Records one value for each sample, for the whole split; nothing is computed from it, and it has no history.

    So a result can hold the uids of its samples, as for cross validation: `OutputRecord(batch["sample_uid"])`.

    Args:
        output: tensor or array `(N, ...)`, or list of N values of any kind.
    """

    def __init__(self, output: torch.Tensor | np.ndarray | list[Any]) -> None:
        super().__init__(output, None, collect_output=True)

    def evaluate_batch(self, batch: Batch, is_training: bool) -> LossTerm:
        """Give the values of one batch.

        Args:
            batch: the batch the model saw.
            is_training: not used.

        Returns:
            `output`, detached; `losses`, zeros `(N,)`, and `loss`, 0.0, for those who rank samples or add up heads;
            `output_ref`.

        Raises:
            ValueError: the output is no tensor, array or list with one value for each sample of the batch.
            RuntimeError: the output is gone, because this head has judged its batch.
        """
        values = self._unjudged()
        nb_samples = len_batch(batch)
        if not holds_samples(values) or len(values) != nb_samples:
            found = f"{len(values)} values" if holds_samples(values) else type(values).__name__
            raise ValueError(
                f"a record must be a tensor, array or list of {nb_samples} values, one a sample, got {found}"
            )
        is_tensor = isinstance(values, torch.Tensor)
        losses = torch.zeros(nb_samples, device=values.device if is_tensor else "cpu")
        return self._term(batch, output=values.detach() if is_tensor else values, losses=losses, loss=0.0)
