"""Recipe files to plant in a folder, and targets to measure: text that tests write to disk."""

import textwrap
from collections.abc import Mapping
from pathlib import Path

CARD = '''"""{title}

What it does
------------
{title}.

Why it helps
------------
It is planted by a test.

When it does not
----------------
Always.

Numerics
--------
{numerics}.

References
----------
None.
"""
'''

RECIPE = """
from advisor.recipe import Recipe, Stage
from advisor.records import Numerics


class Planted(Recipe):
    id = "{id}"
    title = "{id}"
    key = "{key}"
    default = False
    numerics = Numerics.{numerics}
    stage = Stage.{stage}
    usual = frozenset({usual})
    expensive = {expensive}

    def candidates(self, facts):
        {candidates}

    def apply(self, workload, value):
        {apply}

    def code(self, value):
        return "pass\\n"
"""

TINY_TARGET = """
import torch
from torch import nn


class Pause(nn.Module):
    # Stands for the slow part of a model; a recipe may take it out.
    def forward(self, x):
        return 1.0 * x


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), Pause(), nn.Linear(32, 4))
    batch = torch.randn(8, 16), torch.randint(4, (8,))
    return model, batch, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
"""


def recipe_text(
    recipe_id: str,
    *,
    key: str = "",
    numerics: str = "CLOSE",
    stage: str = "MODEL",
    candidates: str = "return [True]",
    apply: str = "pass",
    card: str | None = None,
    usual: bool = False,
    expensive: bool = False,
) -> str:
    """A recipe file; ``candidates`` and ``apply`` are the bodies of its methods.

    A ``usual`` one is in the stack that a session tries first.
    """
    body = RECIPE.format(
        id=recipe_id,
        key=key or f"planted.{recipe_id}",
        numerics=numerics,
        stage=stage,
        usual="{True}" if usual else "",
        expensive=expensive,
        candidates=_indented(candidates),
        apply=_indented(apply),
    )
    return (CARD.format(title=f"Planted {recipe_id}", numerics=numerics.lower()) if card is None else card) + body


def plant(folder: Path, recipe_id: str, **parts: str | bool) -> Path:
    """Write a recipe file into a folder."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{recipe_id}.py"
    path.write_text(recipe_text(recipe_id, **parts), encoding="utf-8")
    return path


def _indented(body: str) -> str:
    return textwrap.indent(textwrap.dedent(body).strip(), " " * 8).strip()


def plant_removers(folder: Path, *, usual: bool = False, **numerics: str) -> None:
    """A recipe for each pause of the target above, in the order of their names, that takes it out."""
    for place, (recipe_id, declared) in enumerate(numerics.items()):
        apply = f"import torch\nworkload.model[{place}] = torch.nn.Identity()"
        plant(folder, recipe_id, numerics=declared, apply=apply, usual=usual)


def pauses_removed(settings: Mapping[str, object]) -> float:
    """The speed-up of a step of 31 ms without the pauses of 10 ms that `first`, `second` and `third` take out."""
    removed = sum(f"planted.{recipe_id}" in settings for recipe_id in ("first", "second", "third"))
    return 31.0 / (31.0 - 10.0 * removed)


BLOCKS_TARGET = """
import torch
from torch import nn

WIDTH = 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.act, self.drop = nn.GELU(), nn.Dropout({dropout})

    def forward(self, x):
        return x + self.drop(self.down(self.act(self.up(self.norm(x)))))


def build():
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))
    batch = torch.randn(32, WIDTH), torch.randint(10, (32,))
    return model, batch, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=1e-3)
"""

# The loss and with it every gradient is {scale} times as large; the learning rate makes up for it.
SCALED_LOSS_TARGET = """
import torch
from torch import nn


def loss(output, target):
    return {scale} * nn.functional.cross_entropy(output.float(), target)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    batch = torch.randn(8, 16), torch.randint(4, (8,))
    return model, batch, loss, torch.optim.SGD(model.parameters(), lr=0.1 / {scale})
"""

# Its activations reach beyond what float16 holds, its losses do not.
OVERFLOWING_TARGET = """
import torch
from torch import nn


class Large(nn.Module):
    def forward(self, x):
        return 1e5 * x


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), Large(), nn.Linear(32, 4))
    batch = torch.randn(8, 16), torch.randint(4, (8,))
    return model, batch, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=1e-12)
"""

# What recipes may do to the blocks above: the bodies of their ``apply``.
FAULTS = {
    "wrong_gelu": """
        for block in list(workload.model)[:-2]:
            block.act.approximate = "tanh"
    """,
    "wrong_norm": """
        for block in list(workload.model)[:-2]:
            block.norm.eps = 1e-2
    """,
    "dropped_bias": """
        for block in list(workload.model)[:-2]:
            block.up.bias.data.zero_()
    """,
}
NO_FAULTS = {
    "nothing": "pass",
    "other_order": """
        import torch

        class Split(torch.nn.Module):
            def __init__(self, linear):  # the same product, summed in two halves
                super().__init__()
                self.linear = linear

            def forward(self, x):
                half = x.shape[-1] // 2
                weight = self.linear.weight
                first, second = x[..., :half] @ weight[:, :half].T, x[..., half:] @ weight[:, half:].T
                return first + second + self.linear.bias

        for block in list(workload.model)[:-2]:
            block.up, block.down = Split(block.up), Split(block.down)
    """,
    "other_stream": """
        import torch

        class Draws(torch.nn.Module):
            def forward(self, x):
                torch.rand(1, device=x.device)
                return x

        workload.model = torch.nn.Sequential(Draws(), *workload.model)
    """,
}


def plant_numerics(folder: Path) -> Path:
    """A folder of recipes that all declare ``close``: some compute something else, some do not."""
    for recipe_id, apply in {**FAULTS, **NO_FAULTS}.items():
        plant(folder, recipe_id, apply=apply)
    return folder


# The beginning of a training script, and its loop.
SETUP = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """
for step, (x, y) in enumerate(loader):
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
"""
