"""A trial leaves nothing to the next one: a baseline after a trial of every recipe is the baseline before them."""

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from proposals import CATALOG

from advisor.recipe.loader_recipe import WorkerRecipe
from advisor.records import Mode, Numerics, Outcome, TargetSpec, TrialSpec
from advisor.runner.trials import Runner

TARGET = """
import json
import sys
import torch
from torch import nn

sys.path.insert(0, TESTS)
from process_state import process_state


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.act = nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU()
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.act(self.linear(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(16, 4)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, images):
        x = self.blocks(self.norm(self.conv(images)).flatten(2).transpose(1, 2))
        return self.head((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


def build():
    print("state", json.dumps(process_state()), flush=True)
    torch.manual_seed(0)
    model = Net()
    data = torch.utils.data.TensorDataset(torch.randn(64, 3, 6, 6), torch.arange(64) % 4)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, num_workers=WORKERS)
    if MODE == "infer":
        return {"model": model.eval(), "data": loader, "mode": "infer"}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {"model": model, "data": loader, "loss": nn.CrossEntropyLoss(), "optimizer": optimizer, "clip_grad": 1.0}
"""
# A reason of a trial that needs another machine, or another workload.
NOT_HERE = (
    "needs one of these packages|is not installed|takes the place of|dataset's transforms do not end in one"
    "|attention kernel cannot run this model's attention"
)
# The one that is tried of those that compile, which takes seconds.
COMPILED = "compile_scope"
WORKERS = {"training with workers": 1}
# So many settings are tried in one trial.
TOGETHER = 6


def tried(device):
    """By kind of loop, the recipes that can be tried on a device in it, each once, with their first other value."""
    found = {"training": {}, "training with workers": {}, "inference": {}}
    for recipe in CATALOG:
        value = next((value for value in recipe.examples if value != recipe.default), recipe.default)
        if device not in recipe.devices or (recipe.package and find_spec(recipe.package) is None):
            continue
        if recipe.id == COMPILED or (not recipe.expensive and Mode.TRAIN not in recipe.modes):
            found["inference"][recipe.id] = value
        elif isinstance(recipe, WorkerRecipe):
            found["training with workers"][recipe.id] = value
        elif not recipe.expensive:
            found["training"][recipe.id] = value
    return found


@pytest.fixture
def trial(tmp_path):
    """Runs a trial: its result, and the state of its process when the target was built."""
    return trials_in(tmp_path)


def trials_in(tmp_path, device="cpu"):
    """A function that runs a trial on a device."""
    Runner.prepare()
    runner = Runner()

    def run(settings, *, mode="train", workers=0):
        text = TARGET.replace("TESTS", repr(str(Path(__file__).parents[2])))
        name = f"target_{mode}_{workers}.py"
        (tmp_path / name).write_text(text.replace("MODE", repr(str(mode))).replace("WORKERS", str(workers)))
        log = tmp_path / f"{len(list(tmp_path.glob('*.log')))}.log"
        spec = TrialSpec(
            trial_id="t",
            target=TargetSpec(name, str(tmp_path), device=device),
            settings=settings,
            measure_s=0.001,  # nothing here is about the time
            warmup_limit_s=0.05,
            timeout_s=300.0,
            log_path=str(log),
            environment=CATALOG.environment(settings),
        )
        result = runner.run(spec, lambda message: None)
        if result.outcome is not Outcome.MEASURED:  # what this machine lacks: it is refused, and leaves nothing either
            assert settings, result.reason
            assert re.search(NOT_HERE, result.reason), f"{settings}: {result.reason}"
        lines = [line for line in log.read_text().splitlines() if line.startswith("state ")]
        return result, json.loads(lines[0].removeprefix("state "))

    return run


def groups(recipes, mode):
    """Settings for one trial each: some that can be combined, and are alike in what they promise and need."""
    found = []
    for name, value in recipes.items():
        recipe = CATALOG[name]
        kind = bool(recipe.environment(value)), recipe.numerics_of(value, mode) is Numerics.EXACT
        for of_kind, settings in found:
            together = {**settings, recipe.key: value}
            if of_kind == kind and len(together) <= TOGETHER and CATALOG.conflict(together) is None:
                settings[recipe.key] = value
                break
        else:
            found.append((kind, {recipe.key: value}))
    return [settings for _, settings in found]


def check_that_nothing_is_left(trial, recipes, mode, workers, same):
    """``same`` compares the baseline before and the one after. What is refused together is tried one by one."""
    before, state_before = trial({}, mode=mode, workers=workers)
    waiting = groups(recipes, mode)
    while waiting:
        settings = waiting.pop()
        result, state = trial(settings, mode=mode, workers=workers)
        if not CATALOG.environment(settings):
            assert state == state_before, f"{settings} begins with what another trial left"
        if result.outcome is Outcome.MEASURED:
            yield settings, before, result
        elif len(settings) > 1:
            waiting += [{key: value} for key, value in settings.items()]
    after, state_after = trial({}, mode=mode, workers=workers)
    assert state_after == state_before
    same(before, after)


def are_identical(before, after):
    assert (after.losses, after.outputs) == (before.losses, before.outputs)


@pytest.mark.parametrize("kind", ["training", "training with workers", "inference"])
def test_a_baseline_after_all_trials_is_the_one_before(trial, kind):
    recipes = {name: value for name, value in tried("cpu")[kind].items() if name != COMPILED or shutil.which("g++")}
    mode = Mode.INFER if kind == "inference" else Mode.TRAIN
    for settings, before, result in check_that_nothing_is_left(
        trial, recipes, mode, WORKERS.get(kind, 0), are_identical
    ):
        if all(CATALOG.by_key(key).numerics_of(value, mode) is Numerics.EXACT for key, value in settings.items()):
            assert (result.losses, result.outputs) == (before.losses, before.outputs), settings
