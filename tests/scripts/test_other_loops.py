"""Scripts with several loops that train: which one is measured, and where the others are."""

import ast
from pathlib import Path

import pytest

from advisor.workloads.scripts.loops import other_loops

FINDER = """
def find_rate(batches):
    rated = torch.optim.SGD(model.parameters(), lr=1e-7)
    for x, y in batches:
        loss = (model(x) - y).abs().mean()
        rated.zero_grad()
        loss.backward()
        rated.step()

find_rate(loader)
for epoch in range(3):
    for x, y in loader:
        STEP
"""
ONE_LOOP = """
def passes(x, y):
    for part in (x, y):
        loss = model(part).mean()
        loss.backward()

def validate():
    for x, y in loader:
        model(x)

for epoch in range(3):
    optimizer.zero_grad()
    for x, y in loader:
        passes(x, y)
        optimizer.step()
    validate()
"""


def test_a_search_for_a_learning_rate_in_front_of_the_loop_is_told(script):
    loop, _ = script(FINDER)
    (note,) = [note for note in loop.notes if "first that the script comes to" in note]
    source = Path("train.py").read_text(encoding="utf-8").splitlines()
    here, there = source.index("    for x, y in batches:") + 1, source.index("    for x, y in loader:") + 1
    assert f"train.py:{here} is the first" in note
    assert f"another loop that trains is at line {there}: to measure that, let the script skip this one" in note


def test_a_loop_of_several_functions_is_one(script):
    loop, _ = script(ONE_LOOP)
    assert "first that the script comes to" not in " ".join(loop.notes)


@pytest.mark.parametrize(
    ("source", "lines", "others"),
    [
        ("for a in b:\n  c.backward()\nwhile d:\n  for e in f:\n    g.backward()\n", [2], [4]),
        ("for a in b:\n  for c in d:\n    e.backward()\n  for f in g:\n    h.backward()\n", [3], []),
        ("for a in b:\n  c()\ndef c():\n  d()\ndef d():\n  for e in f: g.backward()\n", [2], []),
        ("for a in b:\n  c()\ndef h():\n  for e in f: g.backward()\n", [2], [4]),
    ],
)
def test_a_loop_that_is_called_or_around_belongs_to_the_measured_one(source, lines, others):
    tree = ast.parse(source)
    assert other_loops(tree, tree.body[0], lines) == others
