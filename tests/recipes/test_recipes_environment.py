"""Recipes that decide where and with which libraries a process runs: real trials in fresh interpreters."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from facts import cpu_facts
from trial_processes import spec_of

import advisor
from advisor.recipe.catalog import load_catalog
from advisor.records import Mode, Outcome, Skip
from advisor.runner.trials import Runner

CATALOG = load_catalog()
PRINTING = """
import os, torch
from torch import nn

def build():
    names = ("PYTORCH_CUDA_ALLOC_CONF", "LD_PRELOAD", "MALLOC_CONF")
    print(*(f"{name}={os.environ.get(name)}" for name in names))
    print("loaded", sorted({line.split("/")[-1].strip() for line in open("/proc/self/maps") if ".so" in line}))
    return nn.Linear(4, 4), torch.randn(2, 4)
"""


@pytest.fixture(scope="module")
def fork_server():
    Runner.prepare()


def run(folder, settings):
    """A trial of a target that prints its environment, and what it printed."""
    (folder / "printing.py").write_text(PRINTING, encoding="utf-8")
    environment = CATALOG.environment(settings)
    spec = spec_of(folder, "printing.py", mode=Mode.INFER, settings=settings, environment=environment)
    return Runner().run(spec, lambda message: None), Path(spec.log_path).read_text(encoding="utf-8")


@pytest.mark.process
@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("name", ["tcmalloc", "jemalloc"])
def test_another_malloc_is_loaded_where_it_is_installed(tmp_path, name):
    if "host_allocator" not in CATALOG.recipes or isinstance(CATALOG["host_allocator"].candidates(cpu_facts()), Skip):
        pytest.skip("no other allocator is installed here")
    if name not in CATALOG["host_allocator"].candidates(cpu_facts()):
        pytest.skip(f"{name} is not installed here")
    result, log = run(tmp_path, {"cpu.allocator": name})
    assert result.outcome is Outcome.MEASURED
    assert re.search(rf"loaded .*lib{name}", log)


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
