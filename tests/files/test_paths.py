"""Paths that name no target."""

import re

import pytest

from advisor.cli import grammar
from advisor.errors import TargetError
from advisor.files.paths import check_target
from advisor.records import TargetSpec
from advisor.workloads.entrypoint import load_target


def test_a_folder_does_not_hide_the_demo(tmp_path):
    (tmp_path / "demo").mkdir()
    assert load_target(TargetSpec("demo", str(tmp_path), device="cpu")).model is not None


@pytest.mark.parametrize(
    ("target", "said", "typed"),
    [
        ("gone.py", "there is no file gone.py", "Check the path"),
        ("dangling.py", "there is no file dangling.py", "Check the path"),
        ("in/here:build", "there is no file in/here", "Check the path"),
        ("models", "models is a folder", "models/train.py"),
        ("models/", "models/ is a folder", "models/model.py:build"),
        ("pkg/", "pkg/ is a folder", "pkg/__main__.py"),
        ("tuned.yaml", "a file of settings", "perf-advisor check tuned.yaml mymodel:build"),
        ("https://hub.example/org/name", "is an address", "hf:gpt2"),
        ("net.onnx", "a model of another program", "build()"),
        ("book.ipynb", "is a notebook", "advisor.tune"),
    ],
)
def test_a_file_that_is_no_target_is_told_at_once(target, said, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "pkg").mkdir()
    (tmp_path / "dangling.py").symlink_to("gone.py")
    for name in ("pkg/__init__.py", "pkg/__main__.py", "net.onnx", "net.safetensors", "book.ipynb"):
        (tmp_path / name).touch()
    with pytest.raises(TargetError) as error:
        grammar.parse([target, "--headless"])()  # before anything is started
    assert said in error.value.message
    assert typed in error.value.hint
    with pytest.raises(TargetError, match=re.escape(error.value.message)):  # as `advisor.tune` says it
        load_target(TargetSpec(target, str(tmp_path)))


@pytest.mark.parametrize(
    "target",
    [
        *("demo", "mymodel", "mymodel:build", "pkg", "pkg.sub:build", "here.py", "here.py:build", "net.onnx:build"),
        *("hf:org/name", "hf:./folder", "timm:a.in1k", "ultralytics:yolo11n.pt"),
    ],
)
def test_what_may_be_a_target_is_left_to_the_process_that_loads_it(target, tmp_path):
    (tmp_path / "here.py").touch()
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    check_target(target, tmp_path)
