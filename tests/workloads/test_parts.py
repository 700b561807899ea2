"""The parts of a workload in the order and under the names that people return them."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from advisor.errors import TargetError
from advisor.recipe.plan import StepPlan
from advisor.records import Mode, TargetSpec
from advisor.step.step import make_step
from advisor.target.entrypoint import load_target
from advisor.target.normalise import normalise
from advisor.trial.measurement.draws import probe_batches

SPEC = TargetSpec("t", ".")
NET = nn.Linear(8, 3)
SGD = torch.optim.SGD(NET.parameters(), lr=0.1)
BATCH = torch.randn(16, 8), torch.randint(3, (16,))
LOADER = DataLoader(TensorDataset(*BATCH), 8)
LOSS = functional.cross_entropy


class OwnLoss(nn.Module):
    """A loss that is a module of the person's own."""

    def forward(self, output, target):
        return functional.cross_entropy(output, target)


@dataclass
class Parts:
    model: Any
    train_loader: Any
    criterion: Any
    optimizer: Any
    seed: int = 0


class Trainer:
    def __init__(self):
        self.net, self.loader, self.loss_fn, self.opt, self.device = NET, LOADER, LOSS, SGD, "cpu"


class AcceleratedScheduler:
    """Named and used like one, and no class of PyTorch's."""

    def step(self):
        """Do nothing."""


RETURNED = {
    "in the documented order": (NET, LOADER, LOSS, SGD),
    "the loss before the data": (NET, LOSS, LOADER, SGD),
    "the optimizer second": (NET, SGD, LOADER, LOSS),
    "the optimizer before the loss": (NET, LOADER, SGD, LOSS),
    "a module as the loss": (NET, OwnLoss(), LOADER, SGD),
    "a criterion first": (nn.CrossEntropyLoss(), NET, LOADER, SGD),
    "a scheduler too": (NET, LOADER, LOSS, SGD, StepLR(SGD, 1)),
    "a device too": (NET, LOADER, LOADER, LOSS, SGD, torch.device("cpu")),
    "another scheduler": (NET, LOADER, LOSS, SGD, ReduceLROnPlateau(SGD)),
    "a second loader": (NET, LOADER, LOADER, LOSS, SGD),
    "the optimizer in a list": (NET, LOADER, LOSS, [SGD]),
    "optimizers and schedulers": (NET, LOADER, LOSS, ([SGD], [StepLR(SGD, 1)])),
    "usual names": {"net": NET, "train_loader": LOADER, "loss_fn": LOSS, "opt": SGD},
    "more names": {"model": NET, "train_dataloader": LOADER, "criterion": LOSS, "optim": SGD, "val_loader": LOADER},
    "other names": {"net": NET, "train_dl": LOADER, "loss_fn": LOSS, "opt": SGD, "val_dl": LOADER, "sched": None},
    "names of the tutorial": {"net": NET, "trainloader": LOADER, "testloader": LOADER, "criterion": LOSS, "optim": SGD},
    "a scheduler by its kind": {"model": NET, "loader": LOADER, "loss": LOSS, "opt": SGD, "warmup": StepLR(SGD, 1)},
    "a dataclass": Parts(NET, LOADER, LOSS, SGD),
    "a namespace": SimpleNamespace(model=NET, loader=LOADER, loss=LOSS, optimizer=SGD),
    "a trainer": Trainer(),
    "a scheduler that is wrapped": (NET, LOADER, LOSS, SGD, AcceleratedScheduler()),
    "loaders by their names": (NET, {"train": LOADER, "val": DataLoader(BATCH)}, LOSS, SGD),
    "loaders by their names in a dict": {"model": NET, "dataloaders": {"train": LOADER}, "loss": LOSS, "opt": SGD},
    "a pair of loaders": (NET, (LOADER, DataLoader(BATCH)), LOSS, SGD),
}


@pytest.mark.parametrize("value", RETURNED.values(), ids=RETURNED)
def test_each_part_is_found(value):
    loop = normalise(value, SPEC)
    assert (loop.model, loop.data, loop.optimizer, loop.mode) == (NET, LOADER, SGD, Mode.TRAIN)
    assert loop.loss is LOSS or isinstance(loop.loss, OwnLoss | nn.CrossEntropyLoss)


def test_inputs_and_a_target_side_by_side_are_one_batch():
    for value in ((NET, *BATCH, LOSS, SGD), (NET, LOSS, *BATCH, SGD)):
        assert all(a is b for a, b in zip(normalise(value, SPEC).data, BATCH, strict=True))


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (RETURNED["a scheduler too"], "the StepLR is left out: the learning rate does not change in a trial"),
        (RETURNED["a device too"], "the device is left out: the command line sets it"),
        (RETURNED["a second loader"], "the second loader is left out: training steps are measured"),
        (RETURNED["more names"], "val_loader is not used: training steps are measured"),
        (RETURNED["other names"], "val_dl is not used: training steps are measured"),
        (RETURNED["a pair of loaders"], "the first of the 2 loaders is measured"),
        (RETURNED["loaders by their names"], "the loader 'train' is measured, and no other of the dict"),
        (RETURNED["a trainer"], "taken from the Trainer: model, data, loss, optimizer"),
    ],
)
def test_what_is_left_out_is_told(value, note):
    assert note in normalise(value, SPEC).notes


SCALER = torch.amp.GradScaler("cpu")


@pytest.mark.parametrize(
    "value",
    [
        (NET, LOADER, LOSS, SGD, SCALER),
        {"model": NET, "data": LOADER, "loss": LOSS, "optimizer": SGD, "scaler": SCALER},
        SimpleNamespace(model=NET, loader=LOADER, loss=LOSS, optimizer=SGD, scaler=SCALER),
    ],
    ids=["a tuple", "a mapping", "a trainer"],
)
def test_a_loop_that_scales_its_gradients_runs_in_float16(value):
    loop = normalise(value, SPEC)
    assert loop.current == {"precision.autocast": "float16"}
    assert any("under autocast in float16" in note for note in loop.notes)


def test_a_disabled_scaler_is_left_out():
    loop = normalise((NET, LOADER, LOSS, SGD, torch.amp.GradScaler("cpu", enabled=False)), SPEC)
    assert loop.current == {}
    assert "the GradScaler is left out: it is disabled" in loop.notes


class OwnTrainer(Trainer):
    max_grad_norm = 0.0

    def __init__(self):
        super().__init__()
        self.grad_clip = 0.0

    def compute_loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.3)


def test_the_loss_that_a_trainer_computes_comes_before_the_one_that_it_holds():
    trainer = OwnTrainer()
    loop = normalise(trainer, SPEC)
    assert loop.loss == trainer.compute_loss
    assert loop.clip_norm is None
    assert normalise({"model": NET, "data": LOADER, "max_grad_norm": 2.0}, SPEC).clip_norm == 2.0


def test_a_loss_of_the_batch_alone_knows_its_model():
    def restored(batch):
        return functional.mse_loss(net(batch), batch)

    def train_step(batch):
        loss = restored(batch)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    net, batch = nn.Linear(8, 8), torch.randn(4, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    assert normalise((net, batch, train_step, optimizer), SPEC).step is train_step, "one that updates is a step"
    loop = normalise((net, batch, restored), SPEC)
    step = make_step(loop.components(StepPlan(loop.mode, "cpu"), loop.data), loop.loss)
    expected = float(restored(batch).detach())
    assert float(step(batch)) == pytest.approx(expected)
    assert "restored gets the batch, and calls the model itself" in loop.notes


def test_a_loss_that_nobody_gave_is_told():
    assert any("no loss was given" in note for note in normalise((NET, LOADER, SGD), SPEC).notes)
    assert not any("no loss was given" in note for note in normalise((NET, LOADER, LOSS, SGD), SPEC).notes)


class Similarity(nn.Module):
    """A loss that holds the model, as those of sentence-transformers do."""

    def __init__(self, model):
        super().__init__()
        self.model, self.scale = model, nn.Parameter(torch.ones(()))

    def forward(self, features, labels):
        outputs = [self.scale * self.model(part) for part in features]
        return functional.mse_loss(torch.cosine_similarity(*outputs), labels)


def test_a_loss_that_holds_the_model_is_measured_as_the_model():
    loss = Similarity(NET)
    batches = [([torch.randn(4, 8), torch.randn(4, 8)], torch.rand(4)) for _ in range(2)]
    loop = normalise((NET, batches, loss, SGD), SPEC)
    step = make_step(loop.components(StepPlan(loop.mode, "cpu"), loop.data), loop.loss)
    assert loop.model is loss
    for batch in batches:
        expected = float(loss(*batch))
        assert float(step(batch)) == pytest.approx(expected)


def test_the_sums_of_adagrad_go_where_the_parameters_go():
    value = (
        nn.Linear(6, 3),
        (torch.ones(4, 6), torch.tensor([0, 1, 2, 0])),
        nn.CrossEntropyLoss(),
        torch.optim.Adagrad,
    )
    loop = normalise(value, TargetSpec("t.py", "."))
    loop.to(torch.device("meta"))
    assert {state["sum"].device.type for state in loop.optimizer.state.values()} == {"meta"}
    assert {state["step"].device.type for state in loop.optimizer.state.values()} == {"cpu"}


def test_several_models_are_told_of_a_step_of_their_own():
    for value in ((NET, nn.Linear(3, 8), LOADER, LOSS, SGD), ([NET, NET], LOADER), {"encoder": NET, "decoder": NET}):
        with pytest.raises(TargetError) as raised:
            normalise(value, SPEC)
        assert "Several models need a step of your own" in raised.value.hint


def test_a_frozen_script_is_for_inference():
    frozen = torch.jit.freeze(torch.jit.script(nn.Linear(8, 3).eval()))
    assert normalise((frozen, BATCH[0]), SPEC).mode is Mode.INFER


def test_what_is_no_part_is_refused_as_before():
    with pytest.raises(TargetError, match="a tuple of 5"):
        normalise((NET, BATCH, LOSS, SGD, 3), SPEC)
    with pytest.raises(TargetError, match="returned a SimpleNamespace"):
        normalise(SimpleNamespace(loader=LOADER), SPEC)


@pytest.mark.parametrize(
    "optimizer",
    [lambda: SGD, lambda model: torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam, lambda p: [SGD][0]],
    ids=["of nothing", "of the model", "a class", "of the parameters"],
)
def test_an_optimizer_may_be_made_of_nothing_the_model_or_its_parameters(optimizer):
    loop = normalise((NET, BATCH, LOSS, optimizer), SPEC)
    assert isinstance(loop.optimizer, torch.optim.Optimizer)


def batch_of_split(split):
    assert split == "train"
    return BATCH


def endless(batch_size=16):
    while True:
        yield BATCH


@pytest.mark.parametrize(
    "make",
    [lambda: BATCH, batch_of_split, endless, lambda: LOADER, lambda: iter(LOADER)],
    ids=["a batch", "nanoGPT", "a generator", "a loader", "an iterator"],
)
def test_data_may_come_from_a_function_of_no_size(make):
    loop = normalise((NET, make, LOSS, SGD), SPEC)
    batches = probe_batches(loop.data, 0)
    step = make_step(loop.components(StepPlan(loop.mode, "cpu"), loop.data), loop.loss)
    assert len(batches) > 1
    assert all(bool(torch.isfinite(step(batch))) for batch in batches)


def test_a_function_of_a_size_may_return_a_loader():
    def make(batch_size):
        return DataLoader(TensorDataset(*BATCH), batch_size)

    loop = normalise((NET, make, LOSS), replace(SPEC, batch_size=4))
    assert (type(loop.data), loop.batch_size, loop.make_batch) == (DataLoader, 4, None)


class Items:
    """Batches by their index, as a Keras ``Sequence`` has them, or samples: nothing says which."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return BATCH


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (Items(), "data is an Items, a dataset without a loader", "batch_size=None where each item is a batch"),
        ({"labelled": LOADER, "unlabelled": LOADER}, "which are read together is not known", "a function that yields"),
    ],
)
def test_data_that_cannot_be_read_as_it_is_says_what_to_write(data, message, hint):
    with pytest.raises(TargetError, match=message) as refused:
        normalise((NET, data, LOSS), SPEC)
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("signature", "options"),
    [("cfg", {"config": {"n": 4}}), ("args", {"config": {"n": 4}}), ("batch_size", {"batch_size": 4})],
)
def test_a_builder_gets_its_config_under_any_name_and_its_batch_size(tmp_path, signature, options):
    size = "batch_size" if signature == "batch_size" else f"{signature}['n']"
    text = f"import torch\ndef build({signature}):\n    return torch.nn.Linear(8, 3), torch.randn({size}, 8)\n"
    (tmp_path / "one.py").write_text(text, encoding="utf-8")
    assert load_target(TargetSpec("one.py:build", str(tmp_path), **options)).batch_size == 4
