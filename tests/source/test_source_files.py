"""The files that are read for habits, and the findings that matter to the measured loop."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from facts import cpu_facts
from planted import LOOP, SETUP

from advisor.recipe.catalog import load_catalog
from advisor.records import Finding, Mode
from advisor.source.reading import IN_TRAINING_ONLY, ON_GPU_ONLY, read_file, read_sources, relevant, target_file

# --- files ----------------------------------------------------------------------------------------------------


def test_nothing_of_a_file_runs(tmp_path):
    victim, script = tmp_path / "victim", tmp_path / "train.py"
    script.write_text(
        f"import pathlib, sys\npathlib.Path({str(victim)!r}).touch()\nsys.exit(3)\n{SETUP}{LOOP}    loss.item()\n"
    )
    modules = set(sys.modules)
    assert [finding.recipe for finding in read_file(script).findings] == ["loss_sync"]
    assert [reading.file for reading in read_sources("train:build", str(tmp_path))] == ["train.py"]
    assert not victim.exists()
    assert set(sys.modules) == modules


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"def broken(:\n", "cannot be parsed: line 1"),
        (b"x = '\x00'\n", "cannot be parsed"),
        (b"\xff\xfe\x00binary", "is not text"),
        (b"# coding: no-such-coding\n", "is not text"),
        (b"x = " + b"(" * 5000 + b")" * 5000, "cannot be parsed"),
        (b"x = a" + b".b" * 20000, "cannot be parsed|nested too deeply"),
        (b"#" * 1_000_001, "larger than 1 MB"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(tmp_path, content, problem):
    path = tmp_path / "train.py"
    path.write_bytes(content)
    reading = read_file(path, "train.py")
    assert reading.findings == ()
    assert any(part in reading.problem for part in problem.split("|"))
    assert "\n" not in reading.problem


def test_what_is_not_there_is_a_sentence(tmp_path):
    assert read_file(tmp_path / "gone.py", "gone.py").problem == "gone.py could not be read: No such file or directory"
    assert "could not be read" in read_file(tmp_path).problem
    assert "could not be read" in read_file(Path("with\0zero.py")).problem


# --- the target's file ----------------------------------------------------------------------------------------


def test_the_targets_file_is_found_without_importing(tmp_path, monkeypatch):
    package = tmp_path / "mine" / "models"
    package.mkdir(parents=True)
    for path in (tmp_path / "mine" / "__init__.py", package / "__init__.py", package / "net.py", tmp_path / "flat.py"):
        path.write_text("raise SystemExit\n")
    directory = str(tmp_path)
    assert target_file("flat:build", directory) == tmp_path / "flat.py"
    assert target_file("flat", directory) == tmp_path / "flat.py"
    assert target_file("flat.py:build", directory) == tmp_path / "flat.py"
    assert target_file("mine.models.net:build", directory) == package / "net.py"
    assert target_file("mine.models:build", directory) == package / "__init__.py"
    assert target_file("mine/models/net.py:build", directory) == package / "net.py"
    monkeypatch.syspath_prepend(str(package))
    assert target_file("net:build", directory) == package / "net.py"


@pytest.mark.parametrize(
    "target", ["demo", "torchvision.models:resnet50", "nowhere:build", "gone.py:build", "..:x", ":x", "json:load"]
)
def test_what_is_not_the_users_is_not_read(tmp_path, target):
    assert target_file(target, str(tmp_path)) is None
    assert read_sources(target, str(tmp_path)) == ()


def test_each_file_is_read_once(tmp_path):
    (tmp_path / "train.py").write_text(SETUP + LOOP + "    loss.item()\n")
    (tmp_path / "other.py").write_text("x = 1\n")
    scripts = [str(tmp_path / "train.py"), "other.py", "gone.py"]
    readings = read_sources("train.py:build", str(tmp_path), scripts)
    assert [reading.file for reading in readings] == ["train.py", "other.py", "gone.py"]
    assert [bool(reading.problem) for reading in readings] == [False, False, True]


# --- what matters to the measured loop ------------------------------------------------------------------------


def test_what_costs_time_on_a_gpu_only_is_what_its_recipe_says():
    recipes = load_catalog().recipes
    assert {name for name in ON_GPU_ONLY if "cpu" in recipes[name].devices} == set()
    assert {name for name in IN_TRAINING_ONLY & set(recipes) if Mode.INFER in recipes[name].modes} == set()


@pytest.mark.parametrize(
    ("workload", "recipe", "kept"),
    [
        ({"device": "cuda:0"}, "loss_sync", True),
        ({"device": "cpu"}, "loss_sync", False),
        ({"device": "cpu"}, "zero_grad", True),
        ({"device": "cpu", "mode": Mode.INFER}, "zero_grad", False),
    ],
)
def test_only_findings_about_the_measured_loop_on_its_device_are_told(workload, recipe, kept):
    facts = cpu_facts()
    facts = replace(facts, workload=replace(facts.workload, **workload), profile=None)
    finding = Finding(recipe, "train.py", 3, "a line", "does something", "do another thing")
    assert bool(relevant([finding], facts)) is kept
