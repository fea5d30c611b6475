"""The head of an embedding."""

from __future__ import annotations

import torch

from trw_pipeline.outputs.output import LossTerm, Output
from trw_pipeline.typing import Batch, default_sample_uid_name


class OutputEmbedding(Output):
    """Records a tensor of the model that describes its samples, such as for a plot of them. It is not optimised.

    It has no history; `output` of its loss term is the tensor, detached.

    Args:
        output: `(N, ...)`, the embedding.
        clean_loss_term_each_batch: the tensor ends with its batch: callbacks of batches see it, but it is not kept for
            the whole split. Default: it is, in the memory of all embeddings of the split.
        sample_uid_name: feature of the batch that identifies its samples; kept as `uid` if the batch has it. None: not.
    """

    def __init__(
        self,
        output: torch.Tensor,
        clean_loss_term_each_batch: bool = False,
        sample_uid_name: str | None = default_sample_uid_name,
    ) -> None:
        super().__init__(output, None, collect_output=not clean_loss_term_each_batch, sample_uid_name=sample_uid_name)
        self.clean_loss_term_each_batch = clean_loss_term_each_batch
        self.fleeting = ("output",) if clean_loss_term_each_batch else ()

    def evaluate_batch(self, batch: Batch, is_training: bool) -> LossTerm:
        """Give the embedding of one batch.

        Args:
            batch: the batch the model saw.
            is_training: not used.

        Returns:
            `output`, detached, `output_ref`, and `uid` if the batch has it.

        Raises:
            RuntimeError: the output is gone, because this head has judged its batch.
        """
        return self._term(batch, output=self._unjudged().detach())
