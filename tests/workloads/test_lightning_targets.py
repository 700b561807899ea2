"""Lightning's modules as targets: with a Trainer, with hooks, with schedules that ask for the number of steps."""

import pytest
import torch
from torch.utils.data import DataLoader

from advisor.errors import TargetError
from advisor.recipe.plan import StepPlan
from advisor.records import Mode, TargetSpec
from advisor.step.step import make_step
from advisor.workloads.normalise import normalise

pytestmark = pytest.mark.process

SPEC = TargetSpec("t", ".", device="cpu")
QUIET = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}


@pytest.fixture
def lightning():
    return pytest.importorskip("lightning")


@pytest.fixture
def parts(lightning):
    """Modules, data and loaders: classes of Lightning, so they cannot be made without it."""
    import lightning_modules

    return lightning_modules


@pytest.mark.parametrize(
    ("kind", "data", "factor"),
    [("Classifier", None, 1.0), ("Scheduled", "Data", 1.0), ("Doubling", "Data", 2.0), ("Doubling", "Tripling", 6.0)],
)
def test_the_training_step_of_the_module_and_the_hooks_of_its_batch(parts, kind, data, factor):
    module = getattr(parts, kind)()
    rest = (getattr(parts, data)(),) if data else (parts.LOADER, DataLoader(parts.BATCH))
    assert parts.loss_of(module, factor) == parts.first_loss(normalise((module, *rest), SPEC))
    assert parts.first_loss(normalise({"model": type(module)(), "datamodule": rest[0]}, SPEC)) > 0


def test_a_class_of_a_module_with_a_loader_is_a_loop(parts):
    loop = normalise(parts.Alone, SPEC)
    assert (loop.mode, loop.loader, type(loop.optimizer)) == (Mode.TRAIN, parts.LOADER, torch.optim.SGD)
    assert parts.first_loss(loop) > 0


def test_a_trainer_says_how_it_clips_and_casts(lightning, parts):
    trainer = lightning.Trainer(
        gradient_clip_val=0.5, precision="bf16-mixed", accumulate_grad_batches=2, max_epochs=3, **QUIET
    )
    loop = normalise((trainer, parts.Scheduled(), parts.Data()), SPEC)
    assert loop.clip_grad == 0.5
    assert loop.current["precision.autocast"] == "bfloat16"
    assert any("each step is one of the 2" in note for note in loop.notes)
    by_value = lightning.Trainer(gradient_clip_val=0.5, gradient_clip_algorithm="value", **QUIET)
    loop = normalise((by_value, parts.Scheduled(), parts.Data()), SPEC)
    assert loop.clip_grad is None
    assert "the Trainer's clipping of gradients by value is left out" in loop.notes


def test_a_module_may_ask_its_trainer_as_in_a_fit(parts):
    module = parts.AsksItsTrainer()
    assert parts.loss_of(module) == parts.first_loss(normalise((module, parts.WithClasses()), SPEC))


@pytest.mark.parametrize("left_in_a_step", [False, True])
def test_a_module_that_optimizes_by_hand_is_its_own_step(parts, left_in_a_step):
    module = parts.Adversaries()
    if left_in_a_step:  # as a script is, at the first update of its fit()
        normalise((module, parts.Data()), SPEC)
        module.toggle_optimizer(module.optimizers()[0])
    loop = normalise((module, parts.Data()), SPEC)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    step = make_step(loop.components(StepPlan(loop.mode, "cpu"), loop.data), loop.loss)
    output = module.nets[1](module.nets[0](parts.BATCH[0])).detach()
    assert float(step(parts.BATCH)) > float(output.square().mean()), "the sum of both losses"
    assert not any(map(torch.equal, before, module.parameters()))
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert [group["lr"] for group in loop.optimizer.param_groups] == [0.05, 0.05]


def test_a_module_without_an_optimizer_says_so(parts):
    with pytest.raises(TargetError, match=r"WithoutOptimizer\.configure_optimizers returns no optimizer"):
        normalise((parts.WithoutOptimizer(), parts.Data()), SPEC)


def test_a_loader_of_another_kind_says_so(parts):
    class Rows(parts.Data):
        def train_dataloader(self):
            return [parts.BATCH, parts.BATCH]

    with pytest.raises(TargetError, match=r"Rows\.train_dataloader returns list, not a DataLoader"):
        normalise((parts.Classifier(), Rows()), SPEC)
