"""Named models built without a network, and the errors that names end in."""

import socket

import pytest

from advisor.errors import TargetError
from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode, TargetSpec
from advisor.step.step import make_step
from advisor.workloads.entrypoint import load_target

TINY = ("hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=16", "vocab_size=50")


def refuse_the_network(monkeypatch):
    def refuse(*arguments, **keywords):
        raise AssertionError("the network was asked")

    def connect(own, address, usual=socket.socket.connect):
        return usual(own, address) if own.family == socket.AF_UNIX else refuse()

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", connect)


def load(target, *arguments, directory="/", **options):
    return load_target(TargetSpec(target, str(directory), device="cpu", arguments=arguments, **options))


def one_step(loop):
    batch = next(iter(loop.loader)) if loop.loader is not None else loop.data
    if loop.mode is Mode.INFER:
        loop.model.eval()
    plan = StepPlan(mode=loop.mode, device="cpu")
    return make_step(Components(loop.model, loop.optimizer, loop.data, plan), loop.loss)(batch)


def shapes(batch):
    return {name: tuple(value.shape) for name, value in batch.items()}


def failure(target, *arguments, **options):
    with pytest.raises(TargetError) as error:
        load(target, *arguments, **options)
    assert "\n" not in error.value.message
    assert error.value.hint
    return error.value
