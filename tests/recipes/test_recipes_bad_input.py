"""Awkward workloads: every recipe proposes values that run, or says in plain words why it does not."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from facts import GPU_UUID, h200, host
from process_state import state_put_back
from proposals import CATALOG
from test_recipes_kept_promises import Net
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from advisor.recipe import CUDA, Components, Recipe
from advisor.recipe.catalog import Proposals
from advisor.recipe.plan import StepPlan
from advisor.records import Facts, Hardware, Mode, TargetSpec
from advisor.step.device_loader import loop_loader
from advisor.step.step import make_step
from advisor.step.tuning import apply_settings
from advisor.trial.inspection import inspect_loop, versions
from advisor.workloads.normalise import normalise

STEPS = 2
SIZE = 8
# What a person should never read in a reason.
PYTHONS_OWN = re.compile(
    r"\b\w*(Error|Exception|Iteration|Interrupt)\b|Traceback|has a bug|NoneType|<class|object at 0x"
)
CODING_MISTAKES = (KeyError, IndexError, AttributeError, TypeError, NameError, AssertionError, NotImplementedError)


class SharedWeights(Net):
    """One norm, one convolution and one block, each called twice; another convolution borrows a weight."""

    def __init__(self):
        super().__init__()
        self.again, self.borrowed = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.borrowed.weight = self.again.weight

    def forward(self, images):
        x = self.norm(self.again(self.act(self.norm(self.conv(images)))))
        x = self.norm(self.borrowed(self.act(self.again(x)))).flatten(2).transpose(1, 2)
        return self.head(self.blocks[0](self.blocks[0](x)).mean(1))


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.requires_grad_(requires_grad=False).head.requires_grad_()
        self.norm.eval()


class TiedEmbeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.body = nn.Embedding(63, 16), nn.TransformerEncoderLayer(16, 2, 31, batch_first=True)
        self.head = nn.Linear(16, 63, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens)))


class TwoInputs(Net):
    def forward(self, images, scale, *, shift=None):
        out = self.head(self.features(images) * scale)
        return out if shift is None else out + shift


class Keywords(Net):
    def forward(self, pixel_values, scale=None):
        out = self.head(self.features(pixel_values))
        return out if scale is None else out * scale[:, None]


class Nested(Net):
    def forward(self, images):
        features = self.features(images)
        return {"logits": [self.head(features), (features, None)], "count": 1, "aux": {"mean": features.mean()}}


class ByValue(Net):
    """The branch that it takes depends on the values, so no trace can follow it."""

    def forward(self, images):
        x = self.features(images)
        if x.sum() > 0:
            x = x * 2
        for _ in range(int(x.abs().max()) % 2 + 1):
            x = x + 1
        return self.head(x)


class Bag(nn.Module):
    """An embedding whose gradients are sparse."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.EmbeddingBag(64, 16, sparse=True), nn.Linear(16, 4)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(5, 16), nn.Linear(16, 4)

    def forward(self, sequences):
        return self.head(self.rnn(sequences)[1][-1])


class Samples(Dataset):
    def __init__(self):
        self.samples = TensorDataset(images(24), labels(24))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def images(count=SIZE):
    return torch.randn(count, 3, 6, 6)


def labels(count=SIZE):
    return torch.arange(count) % 4


def loss_of_nested(output, target):
    return nn.functional.cross_entropy(output["logits"][0], target) + output["aux"]["mean"] ** 2


WORKLOADS = {
    "shared weights": lambda: (SharedWeights(), (images(), labels())),
    "frozen parameters": lambda: (Frozen(), DataLoader(Samples(), batch_size=SIZE)),
    "tied embeddings": lambda: (TiedEmbeddings(), (torch.randint(63, (SIZE, 5)), torch.randint(63, (SIZE, 5)))),
    "several inputs": lambda: (TwoInputs(), (images(), torch.randn(SIZE, 1), labels())),
    "dict batches": lambda: (
        Keywords(),
        DataLoader([{"pixel_values": i, "scale": torch.ones(()), "labels": n} for i, n in Samples()], batch_size=SIZE),
    ),
    "nested outputs": lambda: (Nested(), (images(), labels()), loss_of_nested),
    "control flow by values": lambda: (ByValue(), DataLoader(Samples(), batch_size=SIZE)),
    "sparse gradients": lambda: (
        Bag(),
        (torch.randint(64, (SIZE, 5)), labels()),
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    ),
    "packed sequences": lambda: (
        Recurrent(),
        (nn.utils.rnn.pack_sequence([torch.randn(n, 5) for n in (4, 3, 3, 1)]), labels(4)),
    ),
    "a callable": lambda: (Net(), lambda size: (images(size), labels(size))),
    "whole batches": lambda: (Net(), DataLoader([(images(), labels())] * 3, batch_size=None)),
    "a worker and what cannot be pickled": lambda: (
        Net(),
        DataLoader(
            Samples(), batch_size=SIZE, num_workers=1, collate_fn=lambda samples: tuple(default_collate(samples))
        ),
    ),
}


def loop_of(name, mode):
    torch.manual_seed(0)
    parts = dict(zip(("model", "data", "loss", "optimizer"), WORKLOADS[name](), strict=False))
    if mode is Mode.TRAIN:
        parts.setdefault("optimizer", lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))
    else:
        parts.pop("optimizer", None)
        parts["model"].eval()
    loop = normalise(parts, TargetSpec("target", ".", mode=mode, device="cpu"))
    if not isinstance(parts["model"], Frozen):
        loop.model.train(mode is Mode.TRAIN)
    return loop


@functools.cache
def facts_of(name: str, mode: Mode) -> Facts:
    loop = loop_of(name, mode)
    batches = list(itertools.islice(loop.loader, STEPS)) if loop.loader is not None else [loop.data] * STEPS
    workload = inspect_loop(loop, torch.device("cpu"), batches)
    # Few workers are started.
    return Facts(hardware=Hardware(host=host(usable_cores=2)), workload=workload, versions=versions())


def on_a_gpu(facts: Facts) -> Facts:
    """The same workload on an H200."""
    device = {"device": "cuda:0", "device_name": "NVIDIA H200", "device_uuid": GPU_UUID, "capability": (9, 0)}
    workload = replace(facts.workload, **device, device_memory_bytes=h200().memory_total_bytes)
    return replace(facts, workload=workload, hardware=replace(facts.hardware, gpus=(h200(),)))


def run_steps(name: str, mode: Mode, settings: dict[str, Any]) -> None:
    """Apply settings as a trial does, and run two steps."""
    loop = loop_of(name, mode)
    plan = StepPlan(mode=mode, device="cpu", clip_norm=loop.clip_grad)
    components = Components(loop.model, loop.optimizer, loop.make_batch or loop.data, plan, loop.batch_size)
    apply_settings(CATALOG, components, settings)
    if loop.make_batch is not None:
        components.data = loop.make_batch(components.batch_size or 1)
    step = make_step(components, loop.loss)
    data = loop_loader(components.data, components.plan) if components.has_loader else [components.data] * STEPS
    ran = 0
    for batch in itertools.islice(data, STEPS):
        result = step(batch)
        ran += 1
    assert ran
    if mode is Mode.TRAIN:
        assert torch.isfinite(result)


def refusal(name: str, mode: Mode, settings: dict[str, Any]) -> str | None:
    """The reason that settings cannot be applied or run; None if they can. Raises errors that are bugs of the code."""
    try:
        run_steps(name, mode, settings)
    except CODING_MISTAKES:
        raise
    except Exception as error:  # whatever else a recipe or PyTorch has to say is a person's to read
        return str(error)
    return None


def plain(text: str) -> bool:
    """Whether a reason is plain words, without Python's own messages."""
    return len(text.split()) >= 3 and not PYTHONS_OWN.search(text)


# What is awkward about these are their batches, which inference gets as training does.
TRAINED_ONLY = ("several inputs", "dict batches", "a callable", "whole batches", "a worker and what cannot be pickled")
CASES = [(name, mode) for name in WORKLOADS for mode in Mode if mode is Mode.TRAIN or name not in TRAINED_ONLY]
each_workload = pytest.mark.parametrize(("name", "mode"), CASES)


def proposals_of(name: str, mode: Mode) -> Iterator[tuple[Recipe, Facts, Proposals]]:
    """The proposals of each recipe of a mode for a workload; recipes that need a GPU see it on a GPU."""
    with state_put_back():
        facts = facts_of(name, mode)
    for recipe in CATALOG:
        if mode in recipe.modes:
            seen = on_a_gpu(facts) if recipe.devices == CUDA else facts
            yield recipe, seen, CATALOG.propose(seen, only=[recipe.id])


@each_workload
def test_a_recipe_says_why_it_proposes_a_value_or_none(name, mode):
    reasons = {}
    for recipe, facts, proposals in proposals_of(name, mode):
        for candidate in proposals.candidates:
            reasons[candidate.name] = recipe.why(facts, candidate.value)
        if not proposals.candidates:
            reasons[recipe.id] = proposals.skipped[recipe.id]
    assert {who: reason for who, reason in reasons.items() if not plain(reason)} == {}
    with state_put_back():
        run_steps(name, mode, {})


@pytest.mark.process
@each_workload
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_what_a_recipe_proposes_runs_or_says_why_not(name, mode):
    refusals = {}
    for recipe, _, proposals in proposals_of(name, mode):
        for candidate in proposals.candidates:
            if recipe.expensive or recipe.package or (recipe.ladder and candidate != proposals.candidates[0]):
                continue
            with state_put_back():
                refusals[candidate.name] = refusal(name, mode, {candidate.key: candidate.value})
    assert {who: reason for who, reason in refusals.items() if reason and not plain(reason)} == {}
