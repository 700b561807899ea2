"""Lightning's modules as targets: with a Trainer, with hooks, with schedules that ask for the number of steps."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor.errors import TargetError
from advisor.recipe.plan import StepPlan
from advisor.records import TargetSpec
from advisor.step.step import make_step
from advisor.target.normalise import normalise

lightning = pytest.importorskip("lightning")
CombinedLoader = lightning.pytorch.utilities.CombinedLoader
SPEC = TargetSpec("t", ".", device="cpu")
BATCH = torch.randn(16, 8), torch.randint(3, (16,))
LOADER = DataLoader(TensorDataset(*BATCH), 8)
QUIET = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}


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


def first_loss(loop):
    step = make_step(loop.components(StepPlan(loop.mode, "cpu"), loop.data), loop.loss)
    return float(step(BATCH))


def loss_of(module, factor=1.0):
    logits = module.net(factor * BATCH[0])
    return pytest.approx(float(nn.functional.cross_entropy(logits, BATCH[1], label_smoothing=0.3).detach()))


@pytest.mark.parametrize(
    ("kind", "rest", "factor"),
    [
        (Classifier, (LOADER, DataLoader(BATCH)), 1.0),
        (Scheduled, (Data(),), 1.0),
        (Doubling, (Data(),), 2.0),
        (Doubling, (Tripling(),), 6.0),
    ],
)
def test_the_training_step_of_the_module_and_the_hooks_of_its_batch(kind, rest, factor):
    module = kind()
    expected = loss_of(module, factor)
    assert first_loss(normalise((module, *rest), SPEC)) == expected
    assert first_loss(normalise({"model": kind(), "datamodule": rest[0]}, SPEC)) > 0


def test_hooks_that_are_left_out_are_named():
    [note] = normalise((Doubling(), LOADER), SPEC).notes
    assert note.endswith("so are its on_after_backward")


def test_a_trainer_says_how_it_clips_and_casts():
    trainer = lightning.Trainer(
        gradient_clip_val=0.5, precision="bf16-mixed", accumulate_grad_batches=2, max_epochs=3, **QUIET
    )
    loop = normalise((trainer, Scheduled(), Data()), SPEC)
    assert loop.clip_norm == 0.5
    assert loop.current["precision.autocast"] == "bfloat16"
    assert any("each step is one of the 2" in note for note in loop.notes)
    by_value = lightning.Trainer(gradient_clip_val=0.5, gradient_clip_algorithm="value", **QUIET)
    loop = normalise((by_value, Scheduled(), Data()), SPEC)
    assert loop.clip_norm is None
    assert "the Trainer clips gradients by value, which is left out" in loop.notes


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
        assert self.trainer.world_size == 1


def test_a_module_may_ask_its_trainer_as_in_a_fit():
    module = AsksItsTrainer()
    expected = loss_of(module)
    assert first_loss(normalise((module, WithClasses()), SPEC)) == expected


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


@pytest.mark.parametrize("left_in_a_step", [False, True])
def test_a_module_that_optimizes_by_hand_is_its_own_step(left_in_a_step):
    module = Adversaries()
    if left_in_a_step:  # as a script is, at the first update of its fit()
        normalise((module, Data()), SPEC)
        module.toggle_optimizer(module.optimizers()[0])
    loop = normalise((module, Data()), SPEC)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    step = make_step(loop.components(StepPlan(loop.mode, "cpu"), loop.data), loop.loss)
    output = module.nets[1](module.nets[0](BATCH[0])).detach()
    first = float(step(BATCH))
    assert first > float(output.square().mean()), "the sum of both losses"
    assert not any(map(torch.equal, before, module.parameters()))
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert [group["lr"] for group in loop.optimizer.param_groups] == [0.05, 0.05]


class WithoutOptimizer(Classifier):
    def configure_optimizers(self):
        return None


def test_a_module_without_an_optimizer_says_so():
    with pytest.raises(TargetError, match=r"WithoutOptimizer\.configure_optimizers returns no optimizer"):
        normalise((WithoutOptimizer(), Data()), SPEC)


class Paired(Classifier):
    """Trains on batches of two loaders at once."""

    def training_step(self, batch, batch_idx):
        return super().training_step((batch["clean"][0] + batch["noise"][0], batch["clean"][1]))


def of_two(mode="max_size_cycle"):
    loaders = {"clean": LOADER, "noise": DataLoader(TensorDataset(torch.ones(24, 8)), 8)}
    return CombinedLoader(loaders, mode) if mode else loaders


class TwoLoaders(Data):
    def train_dataloader(self):
        return of_two(mode=None)


GIVEN = {"cycle": of_two(), "shortest": of_two("min_size"), "dict": of_two(None), "module": TwoLoaders()}


@pytest.mark.parametrize("kind", GIVEN)
def test_several_loaders_are_read_together_as_in_a_fit(kind):
    trainer = lightning.Trainer(max_epochs=1, **QUIET)
    module = Paired()
    loop = normalise((trainer, module, GIVEN[kind]), SPEC)
    assert isinstance(loop.data, DataLoader), "not one batch"
    batches = list(loop.data)
    assert len(batches) == (2 if kind == "shortest" else 3)
    assert [batch["clean"][0].shape for batch in batches] == [(8, 8)] * len(batches)
    assert torch.equal(batches[-1]["clean"][0], LOADER.dataset.tensors[0][:8] if len(batches) == 3 else BATCH[0][8:])
    inputs, labels = batches[0]["clean"]
    expected = nn.functional.cross_entropy(module.net(inputs + 1), labels, label_smoothing=0.3)
    step = make_step(loop.components(StepPlan(loop.mode, "cpu"), loop.data), loop.loss)
    assert float(step(batches[0])) == pytest.approx(float(expected))


def test_a_loader_of_another_kind_says_so():
    class Rows(Data):
        def train_dataloader(self):
            return [BATCH, BATCH]

    with pytest.raises(TargetError, match=r"Rows\.train_dataloader returns list, not a DataLoader"):
        normalise((Classifier(), Rows()), SPEC)
