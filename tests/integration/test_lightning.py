"""A sequence is the loader of Lightning's trainer, and is resumed with its checkpoints."""

from __future__ import annotations

import lightning
import pytest
import torch
from torch.utils.data import DataLoader
from toy_loop import EPOCHS, NB_BATCHES, THREADS, Trained, expected, loss_of, new_net, sgd, train_chain, valid_chain

pytestmark = pytest.mark.slow


class Lit(lightning.LightningModule):
    """The model, which notes what it sees."""

    def __init__(self):
        super().__init__()
        self.net = new_net()
        self.ids, self.losses = {}, {}

    def training_step(self, batch, batch_idx):
        self.ids.setdefault(self.current_epoch, []).append(batch["id"].tolist())
        return loss_of(self.net, batch)

    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking:
            self.losses.setdefault(self.current_epoch, []).append(loss_of(self.net, batch).item())

    def configure_optimizers(self):
        return sgd(self.net)

    @property
    def trained(self):
        return Trained(self.net, list(self.ids.values()), list(self.losses.values()))


def lit_trainer(*callbacks, **options):
    return lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=list(callbacks),
        **options,
    )


of_lightning = pytest.mark.filterwarnings(
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated",
    "ignore:The 'train_dataloader' does not have many workers",
    "ignore:The 'val_dataloader' does not have many workers",
)


@of_lightning
def test_lightning_trains_as_the_loop_by_hand_does(chains):
    model = Lit()
    lit_trainer().fit(model, *chains)
    model.trained.assert_same(expected())


@of_lightning
def test_lightning_takes_a_loader_over_the_dataset(chains):
    model = Lit()
    lit_trainer().fit(model, *(DataLoader(chain.to_dataset(), batch_size=None) for chain in chains))
    model.trained.assert_same(expected())


class SaveAfter(lightning.Callback):
    """Saves after some steps, in the midst of an epoch."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


@of_lightning
@pytest.mark.parametrize("step", [1, 3, 4, 7])
def test_lightning_resumes_in_the_midst_of_an_epoch(chains, opened, tmp_path, step):
    """It asks a loader without length for a batch ahead, which a saved position counts: so it is told the length."""
    path, limits = tmp_path / "middle.ckpt", {"limit_train_batches": NB_BATCHES}
    lit_trainer(SaveAfter(step, path), **limits).fit(Lit(), *chains)
    model = Lit()
    again = opened(train_chain(**THREADS)), opened(valid_chain(**THREADS))
    lit_trainer(**limits).fit(model, *again, ckpt_path=path, weights_only=True)
    whole = expected()
    ids = [one for epoch in whole.ids for one in epoch]
    assert [one for epoch in model.trained.ids for one in epoch] == ids[step:]
    assert model.trained.losses == whole.losses[step // NB_BATCHES :]
    assert all(map(torch.equal, model.net.parameters(), whole.net.parameters()))
