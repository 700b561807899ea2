"""Recipes that decide where and with which libraries a process runs: real trials in fresh interpreters."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import forked
import pytest
import torch
from facts import GIB, cpu_facts, gpu_facts, host

import advisor
from advisor.recipe.catalog import load_catalog
from advisor.records import Mode, Outcome, Skip, TargetSpec, TrialSpec
from advisor.runner.trials import Runner
from advisor.step.cores import chosen_cores, cores_in

CATALOG = load_catalog()
PRINTING = """
import os, torch
from torch import nn

def build():
    names = ("PYTORCH_CUDA_ALLOC_CONF", "LD_PRELOAD", "OMP_PROC_BIND", "MALLOC_CONF")
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
    spec = TrialSpec(
        trial_id="t",
        target=TargetSpec("printing.py", str(folder), mode=Mode.INFER, device="cpu"),
        settings=settings,
        measure_s=0.1,
        warmup_limit_s=0.2,
        timeout_s=120.0,
        log_path=str(folder / "log"),
        environment=CATALOG.environment(settings),
    )
    return Runner().run(spec, lambda message: None), (folder / "log").read_text(encoding="utf-8")


@pytest.mark.process
@pytest.mark.usefixtures("fork_server")
def test_variables_reach_the_trial_before_python_starts(tmp_path):
    result, log = run(tmp_path, {"cpu.openmp": "bind"})
    assert result.outcome is Outcome.MEASURED
    assert "OMP_PROC_BIND=close" in log


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


def test_libraries_of_two_settings_are_both_preloaded():
    joined = CATALOG.environment({"cpu.allocator": "jemalloc", "cpu.openmp": "iomp"})
    assert re.search(r"jemalloc.*:.*libiomp5|libiomp5.*:.*jemalloc", joined["LD_PRELOAD"])
    assert {"MALLOC_CONF", "KMP_BLOCKTIME"} <= set(joined)


def test_what_the_user_has_set_is_emptied_to_measure_it_off(monkeypatch):
    assert CATALOG.environment({"cpu.allocator": "malloc", "cpu.openmp": "default"}) == {}
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    emptied = CATALOG.environment({"cpu.allocator": "malloc", "cpu.openmp": "default"})
    assert emptied["OMP_PROC_BIND"] == ""
    assert CATALOG.environment({"cpu.allocator": "malloc"}) == {"LD_PRELOAD": ""}


def test_a_setting_of_the_environment_that_comes_too_late_is_pointed_out(tmp_path):
    (tmp_path / "t.yaml").write_text("cpu.openmp: bind\n", encoding="utf-8")
    tuning = advisor.load(str(tmp_path / "t.yaml"))
    with pytest.warns(UserWarning, match="OMP_PROC_BIND=close .*python"):
        tuning.prepare(torch.nn.Linear(2, 2))


# --- the allocator --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allocated", "reserved", "tried"), [(4 * GIB, 8 * GIB, True), (8 * GIB, 8 * GIB, False), (2**20, 2**24, False)]
)
def test_the_allocator_is_tried_where_memory_is_fragmented(allocated, reserved, tried):
    facts = replace(gpu_facts(), peak_allocated_bytes=allocated, peak_reserved_bytes=reserved)
    values = CATALOG["allocator"].candidates(facts)
    assert ("expandable_segments" in values) if tried else ("no fragmentation" in values.reason)


def test_an_unknown_peak_is_no_reason_to_try():
    assert "not known" in CATALOG["allocator"].candidates(gpu_facts()).reason


@pytest.mark.parametrize("value", ["expandable_segments", "max_split_size", "cuda_async"])
def test_the_allocators_code_sets_what_the_trial_gets(value):
    code = CATALOG["allocator"].code(value) + "print(os.environ['PYTORCH_CUDA_ALLOC_CONF'])\n"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == CATALOG["allocator"].environment(value)["PYTORCH_CUDA_ALLOC_CONF"]


# --- cores ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "cores"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("\n", set())])
def test_lists_of_cores_are_read(text, cores):
    assert cores_in(text) == cores


def planted_system(folder, nodes, siblings):
    for number, cores in enumerate(nodes):
        (folder / f"node/node{number}").mkdir(parents=True)
        (folder / f"node/node{number}/cpulist").write_text(cores, encoding="utf-8")
    for core, text in siblings.items():
        (folder / f"cpu/cpu{core}/topology").mkdir(parents=True)
        (folder / f"cpu/cpu{core}/topology/thread_siblings_list").write_text(text, encoding="utf-8")


def test_one_thread_of_each_core_and_the_cores_of_a_node(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 5})
    siblings = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 5: "1,5"}
    planted_system(tmp_path, ["8-11", "0-1,4-5"], siblings)
    assert chosen_cores("physical", str(tmp_path)) == {0, 1, 2, 3}
    assert chosen_cores("node", str(tmp_path)) == {0, 1, 5}


def test_a_system_that_does_not_tell_leaves_all_cores(tmp_path):
    assert chosen_cores("physical", str(tmp_path)) == chosen_cores("node", str(tmp_path)) == os.sched_getaffinity(0)


def test_affinity_is_tried_where_there_is_a_choice():
    recipe = CATALOG["affinity"]
    choice = cpu_facts(hardware=replace(cpu_facts().hardware, host=host(usable_cores=32, numa_nodes=2)))
    assert recipe.candidates(choice) == ["physical", "node"]
    assert "nothing to choose" in recipe.candidates(cpu_facts()).reason


@pytest.mark.process
@pytest.mark.parametrize("way", ["apply", "code"])
def test_the_process_keeps_to_the_cores_that_were_chosen(way):
    """In a process of its own: its threads and cores would stay limited."""
    statements = {
        "apply": "recipe.apply(Components(None, None, None, StepPlan(Mode.TRAIN, 'cpu')), 'physical')",
        "code": "exec(recipe.code('physical'))",
    }
    program = (
        "import os, torch\nfrom advisor.recipe.plan import StepPlan\n"
        "from advisor.recipe.catalog import load_catalog\n"
        "from advisor.recipe import Components\nfrom advisor.records import Mode\n"
        "from advisor.step.cores import chosen_cores as chosen\nwanted = chosen('physical')\n"
        f"recipe = load_catalog()['affinity']\n{statements[way]}\n"
        "print(os.sched_getaffinity(0) == wanted, torch.get_num_threads() == len(wanted))"
    )
    ended = forked.run(program)
    assert ended.stdout.split() == ["True", "True"], ended.stderr


def test_binding_leaves_workers_no_cores():
    assert "workers" in CATALOG["openmp"].conflict("bind", {"data.num_workers": 2})
    assert CATALOG["openmp"].conflict("bind", {"data.num_workers": 0}) is None
    assert CATALOG["openmp"].conflict("iomp", {"data.num_workers": 2}) is None
