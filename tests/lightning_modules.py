"""Modules and data of Lightning for its tests; can be imported only where Lightning is installed."""

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor.recipe.plan import StepPlan
from advisor.step.step import make_step

BATCH = torch.randn(16, 8), torch.randint(3, (16,))
LOADER = DataLoader(TensorDataset(*BATCH), 8)


class Classifier(lightning.LightningModule):
    """A module whose loss is not the usual one, and whose training step takes no number of the batch."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 3)

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch):
        inputs, labels = batch
        self.log("seen", inputs.sum())
        return nn.functional.cross_entropy(self(inputs), labels, label_smoothing=0.3)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Scheduled(Classifier):
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        steps = self.trainer.estimated_stepping_batches
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)]


class Alone(Classifier):
    """With a loader of its own, and dictionaries for the loss and the optimizer."""

    def train_dataloader(self):
        return LOADER

    def training_step(self, batch, batch_idx):
        return {"loss": super().training_step(batch)}

    def configure_optimizers(self):
        return {"optimizer": torch.optim.SGD(self.parameters(), lr=0.1)}


class Doubling(Classifier):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return 2 * batch[0], batch[1]

    def on_after_backward(self):
        """Change nothing."""


class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        return LOADER


class Tripling(Data):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return 3 * batch[0], batch[1]


class AsksItsTrainer(Classifier):
    """Asks the Trainer for what it holds: in ``setup``, in the step and for its schedule."""

    def setup(self, stage):
        self.classes = self.trainer.datamodule.classes

    def training_step(self, batch, batch_idx):
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.log_dict({"rate": rate, "epoch": self.current_epoch})
        self.logger.experiment.add_scalar("rate", rate)
        assert self.trainer.training
        assert self.classes == 3
        return super().training_step(batch)


class WithClasses(Data):
    classes = 3

    def setup(self, stage):
        assert (stage, self.trainer.world_size) == ("fit", 1)


class Adversaries(lightning.LightningModule):
    """Two networks, each with its optimizer, which the training step uses itself; it returns nothing."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.nets = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 1)])

    def training_step(self, batch, batch_idx):
        for number, optimizer in enumerate(self.optimizers()):
            self.toggle_optimizer(optimizer)
            loss = (self.nets[1](self.nets[0](batch[0])) - number).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
            self.log(f"loss {number}", loss)
        for schedule in self.lr_schedulers():
            schedule.step()

    def configure_optimizers(self):
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in self.nets]
        return optimizers, [torch.optim.lr_scheduler.StepLR(one, 1, 0.5) for one in optimizers]


class WithoutOptimizer(Classifier):
    def configure_optimizers(self):
        return None


def first_loss(loop):
    return float(make_step(loop.components(StepPlan(loop.mode, "cpu"), loop.data), loop.loss)(BATCH))


def loss_of(module, factor=1.0):
    logits = module.net(factor * BATCH[0])
    return pytest.approx(float(nn.functional.cross_entropy(logits, BATCH[1], label_smoothing=0.3).detach()))
