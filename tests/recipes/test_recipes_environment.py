"""Recipes that decide with which libraries a process runs, and what else is in its environment."""

import subprocess
import sys

import pytest
import torch
from proposals import CATALOG

import advisor


def test_what_the_user_has_set_is_emptied_to_measure_it_off(monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert CATALOG.environment({"cpu.allocator": "malloc"}) == {}
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    assert CATALOG.environment({"cpu.allocator": "malloc"}) == {"LD_PRELOAD": ""}


def test_a_setting_of_the_environment_that_comes_too_late_is_pointed_out(tmp_path):
    (tmp_path / "t.yaml").write_text("cpu.allocator: jemalloc\n", encoding="utf-8")
    tuning = advisor.load(str(tmp_path / "t.yaml"))
    with pytest.warns(UserWarning, match="LD_PRELOAD=.*jemalloc.* python"):
        tuning.prepare(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("value", ["default", "expandable_segments"])
def test_the_allocators_code_sets_what_the_trial_gets(value):
    code = CATALOG["allocator"].code(value) + "print(os.environ['PYTORCH_CUDA_ALLOC_CONF'])\n"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == CATALOG["allocator"].environment(value)["PYTORCH_CUDA_ALLOC_CONF"]
