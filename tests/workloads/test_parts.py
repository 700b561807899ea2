"""The parts of a workload in the order and under the names that people return them."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from advisor.errors import TargetError
from advisor.records import Mode, TargetSpec
from advisor.workloads.entrypoint import load_target
from advisor.workloads.normalise import normalise

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
    "another scheduler": (NET, LOADER, LOSS, SGD, ReduceLROnPlateau(SGD)),
    "usual names": {"net": NET, "train_loader": LOADER, "loss_fn": LOSS, "opt": SGD},
    "a scheduler by its kind": {"model": NET, "loader": LOADER, "loss": LOSS, "opt": SGD, "warmup": StepLR(SGD, 1)},
    "more names": {"model": NET, "train_dataloader": LOADER, "criterion": LOSS, "optim": SGD},
    "a scheduler that is wrapped": (NET, LOADER, LOSS, SGD, AcceleratedScheduler()),
}


@pytest.mark.parametrize("value", RETURNED.values(), ids=RETURNED)
def test_each_part_is_found(value):
    loop = normalise(value, SPEC)
    assert (loop.model, loop.data, loop.optimizer, loop.mode) == (NET, LOADER, SGD, Mode.TRAIN)
    assert loop.loss is LOSS or isinstance(loop.loss, OwnLoss | nn.CrossEntropyLoss)


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
        ({"labelled": LOADER, "unlabelled": LOADER}, "a dict and holds no tensor", "one DataLoader"),
    ],
)
def test_data_that_cannot_be_read_as_it_is_says_what_to_write(data, message, hint):
    with pytest.raises(TargetError, match=message) as refused:
        normalise((NET, data, LOSS), SPEC)
    assert hint in refused.value.hint


@pytest.mark.parametrize(("signature", "options"), [("cfg", {"config": {"n": 4}}), ("args", {"config": {"n": 4}})])
def test_a_builder_gets_its_config_under_any_name(tmp_path, signature, options):
    text = (
        f"import torch\ndef build({signature}):\n    return torch.nn.Linear(8, 3), torch.randn({signature}['n'], 8)\n"
    )
    (tmp_path / "one.py").write_text(text, encoding="utf-8")
    assert load_target(TargetSpec("one.py:build", str(tmp_path), **options)).batch_size == 4
