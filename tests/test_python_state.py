"""What modules keep in Python, put back after a call that is to leave nothing behind."""

import collections
import random
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

from advisor.step.draws import HostDraws
from advisor.step.inplace import inplace_sites
from advisor.step.python_state import MOST_COPIED, PythonState
from advisor.step.tracing import CannotTraceError
from advisor.step.undone import undone


class Averages:
    def __init__(self):
        self.total, self.recent = 0.0, collections.deque([1, 2], maxlen=2)


class Keeper(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.relu = nn.Linear(2, 2), nn.ReLU()
        self.register_buffer("steps", torch.zeros(()))
        self.calls, self.names, self.seen = [0], {"one": {1}}, set()
        self.averages, self.options = Averages(), SimpleNamespace(beta=0.5)
        self.many = list(range(2 * MOST_COPIED))

    def forward(self, x):
        self.calls[0] += 1
        self.calls.append(1)
        self.names["one"].add(2)
        self.names["two"] = None
        self.seen |= {3}
        self.averages.total += 1.0
        self.averages.recent.append(random.random())
        self.options.beta = numpy.random.rand()
        self.many.append(0)
        self.fresh = torch.rand(1)
        self.steps = self.steps + 1
        return self.relu(self.linear(x))


def text_of(model):
    own = vars(model)
    kept = [own[name] for name in ("calls", "names", "seen", "options", "many")]
    return repr([*kept, vars(model.averages), "fresh" in own, model.steps])


def test_a_try_leaves_nothing_behind_in_a_model():
    model = Keeper()
    before, draws = text_of(model), HostDraws()
    with undone(model):
        model(torch.randn(1, 2)).sum().backward()
        assert text_of(model) != before
        assert draws != HostDraws()
    assert text_of(model) == before
    assert draws == HostDraws()
    assert model.linear.weight.grad is None


TRIES = []


def test_a_try_leaves_nothing_behind_in_what_a_loss_writes_to():
    count, seen, last = 0, {"losses": [1.0]}, [torch.zeros(())]

    def note():
        TRIES.append(1)

    def loss(model, batch):
        nonlocal count
        note()
        count += 1
        seen["losses"].append(2.0)
        last[0] = model(batch).sum()
        return last[0]

    model, before = nn.Linear(2, 2), last[0]
    with undone(model, loss):
        loss(model, torch.randn(1, 2)).backward()
        assert count == len(TRIES) == 1
    assert (count, seen, TRIES) == (0, {"losses": [1.0]}, [])
    assert last == [before]


def test_a_trace_leaves_nothing_behind_and_does_not_freeze_what_a_model_keeps():
    class Counts(Keeper):
        def forward(self, x):
            self.calls[0] += 1
            return self.relu(self.linear(x))

    model = Counts()
    before = text_of(model)
    with pytest.raises(CannotTraceError, match="keeps values in its forward"):
        inplace_sites(model)
    assert text_of(model) == before


def test_a_trace_takes_away_the_hooks_that_a_first_forward_installs():
    class InstallsOnce(Keeper):
        installed = False

        def forward(self, x):
            if not self.installed:
                self.installed = True
                self.linear.register_forward_hook(lambda *_: TRIES.append(1))
            return self.linear(x)

    model = InstallsOnce()
    with pytest.raises(CannotTraceError):
        inplace_sites(model)
    model(torch.ones(1, 2))
    assert len(TRIES) == 1
    TRIES.clear()


def test_a_trace_leaves_sparse_buffers_as_they_are():
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.relu = nn.Linear(2, 2), nn.ReLU()
            self.register_buffer("edges", torch.eye(2).to_sparse())

        def forward(self, x):
            return self.relu(self.linear(torch.sparse.mm(self.edges, x)))

    model = Graph()
    assert inplace_sites(model)
    assert torch.equal(model.edges.to_dense(), torch.eye(2))


def test_a_state_knows_whether_it_is_another():
    model = Keeper()
    state = PythonState(model.modules())
    assert not state.is_other_now
    model.names["one"].add(5)
    assert state.is_other_now
    state.put_back()
    assert not state.is_other_now
    model.eval()
    assert state.is_other_now
