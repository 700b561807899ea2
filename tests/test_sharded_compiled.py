"""Sharding a compiled model: its code runs inside the hooks that gather the parameters."""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.compile import compile_in_place
from advisor.step.parallel import spread_model
from advisor.step.regions import compile_blocks


class Block(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


@pytest.fixture
def one_rank(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    torch.compiler.reset()
    counters.clear()
    yield
    torch.distributed.destroy_process_group()
    torch.compiler.reset()


@pytest.mark.parametrize("unit", ["blocks", "model"])
@pytest.mark.parametrize("compiles", [compile_in_place, compile_blocks])
@pytest.mark.usefixtures("one_rank")
def test_a_sharded_model_runs_compiled_code_without_a_break(compiles, unit):
    """Inside one call with the hooks nothing was compiled at all: they end a graph."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(3)], nn.Linear(8, 2))
    reference, inputs = copy.deepcopy(model), torch.randn(4, 8)
    compiles(model, backend="eager")
    plan = StepPlan(mode=Mode.TRAIN, device="cpu", strategy="fully_shard", shard_unit=unit)
    spread_model(model, None, plan)
    assert inspect.signature(model.forward) == inspect.signature(reference.forward)
    for one in (model, reference):
        one(inputs).square().sum().backward()
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]
    for parameter, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), expected.grad)
