"""Compiled models over several processes: the code runs inside the hooks that gather or exchange."""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.compile import compile_model
from advisor.step.spread import spread_model


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
@pytest.mark.parametrize("scope", ["model", "regional"])
@pytest.mark.usefixtures("one_rank", "eager_backend")
def test_a_sharded_model_runs_compiled_code_without_a_break(scope, unit):
    """Inside one call with the hooks nothing was compiled at all: they end a graph."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(3)], nn.Linear(8, 2))
    reference, inputs = copy.deepcopy(model), torch.randn(4, 8)
    how = {"compile_mode": "default", "compile_scope": scope, "strategy": "fully_shard", "shard_unit": unit}
    plan = StepPlan(Mode.TRAIN, "cpu", **how)
    compile_model(model, plan)
    spread_model(model, None, plan)
    assert inspect.signature(model.forward) == inspect.signature(reference.forward)
    for one in (model, reference):
        one(inputs).square().sum().backward()
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]
    for parameter, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), expected.grad)


@pytest.mark.usefixtures("one_rank")
def test_of_distributed_data_parallel_the_model_inside_is_compiled():
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    compile_model(wrapped, StepPlan(mode=Mode.TRAIN, device="cpu", compile_mode="default"))
    assert wrapped._compiled_call_impl is None
    assert wrapped.module._compiled_call_impl is not None
