"""Recipe files to plant in a folder, and targets to measure: text that tests write to disk."""

from __future__ import annotations

import textwrap
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
from __future__ import annotations

from advisor.recipe import Recipe, Stage
from advisor.records import Numerics


class Planted(Recipe):
    id = "{id}"
    title = "{id}"
    key = "{key}"
    default = False
    numerics = Numerics.{numerics}
    stage = Stage.{stage}

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
) -> str:
    """A recipe file; ``candidates`` and ``apply`` are the bodies of its methods."""
    body = RECIPE.format(
        id=recipe_id,
        key=key or f"planted.{recipe_id}",
        numerics=numerics,
        stage=stage,
        candidates=_indented(candidates),
        apply=_indented(apply),
    )
    return (CARD.format(title=f"Planted {recipe_id}", numerics=numerics.lower()) if card is None else card) + body


def plant(folder: Path, recipe_id: str, **parts: str) -> Path:
    """Write a recipe file into a folder."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{recipe_id}.py"
    path.write_text(recipe_text(recipe_id, **parts), encoding="utf-8")
    return path


def _indented(body: str) -> str:
    return textwrap.indent(textwrap.dedent(body).strip(), " " * 8).strip()
