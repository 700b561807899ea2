"""The benchmark's loop, variants, processes and table, at sizes for a machine without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import experts
import plain
import pytest
import scripts
import torch
import variants
from process_state import state_put_back
from processes import FailedError, run_apart
from tables import document, expert_of
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

BENCHMARK = Path(__file__).parent / "benchmarks" / "benchmark.py"
CPU = torch.device("cpu")
CANDIDATES = [(name, index) for name, written in experts.EXPERTS.items() for index in range(len(written))]


def small_script(name):
    return scripts.load(scripts.small(scripts.WORKLOADS[name]), CPU)


# --- the loop -------------------------------------------------------------------------------------------------


def test_a_step_on_one_batch_is_timed():
    timed = plain.time_loop(lambda batch: time.sleep(0.01) or batch[0], (torch.zeros(1),), timed_s=0.1)
    assert 10 <= timed.step_ms < 30
    assert len(timed.blocks_ms) >= plain.LEAST_BLOCKS
    assert timed.warmup_s >= 0.01 * plain.FIRST_STEPS


def test_a_block_of_a_loader_is_an_epoch():
    batches = []
    loader = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2)
    timed = plain.time_loop(lambda batch: batches.append(batch) or batch[0], loader, timed_s=0.0)
    assert len(batches) >= 3 * plain.LEAST_BLOCKS
    assert len(batches) % 3 == 0
    assert len(timed.blocks_ms) == plain.LEAST_BLOCKS


def test_what_is_not_finite_has_no_time():
    with pytest.raises(FloatingPointError):
        plain.time_loop(lambda batch: batch[0], (torch.tensor(float("nan")),), timed_s=0.0)


# --- the variants ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "index"), CANDIDATES)
def test_an_expert_trains_as_the_script_does(name, index):
    """What is written by hand runs, and its optimizer is the script's but for how it is implemented."""
    used = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: used.append(optimizer))
    script = small_script(name)
    try:
        with state_put_back(), torch.compiler.set_stance("force_eager"):
            step, data = experts.EXPERTS[name][index](script)
            result = step(data if isinstance(data, tuple) else next(iter(data)))
    finally:
        hook.remove()
    assert torch.isfinite(result).all()
    assert bool(used) == script.trains
    if script.trains:
        assert hyperparameters(used[0]) == hyperparameters(script.make_optimizer(script.model.parameters()))
        assert type(used[0]) is type(script.make_optimizer(script.model.parameters()))


def test_folded_norms_compute_the_same():
    script = small_script("infer1")
    expected = script.model(*script.data)
    experts.fold_norms(script.model)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in script.model.modules())
    torch.testing.assert_close(script.model(*script.data), expected, rtol=1e-3, atol=1e-4)


def hyperparameters(optimizer):
    how = ("params", "fused", "foreach", "capturable")
    return [{key: value for key, value in group.items() if key not in how} for group in optimizer.param_groups]


@pytest.mark.parametrize("name", ["mlp12", "infer1", "jpeg"])
def test_settings_and_the_plain_loop_compute_the_same(name, tmp_path):
    settings = tmp_path / "tuned.yaml"
    settings.write_text("step.zero_grad: zeros\n" if name != "infer1" else "infer.grad: no_grad\n", encoding="utf-8")
    results = []
    for variant in (variants.baseline, lambda script: variants.tuned(script, settings)):
        step, data = variant(small_script(name))
        results.append(step(data if isinstance(data, tuple) else next(iter(data))))
    torch.testing.assert_close(*results)


def test_inference_has_the_batch_that_was_asked_for():
    workload = scripts.WORKLOADS["infer128"]
    inputs = torch.arange(3.0)
    (repeated,) = scripts._inputs((inputs, None), workload.batch_size)
    assert len(repeated) == 128
    assert repeated[:4].tolist() == [0, 1, 2, 0]
    assert len(small_script("infer1").data[0]) == 1


@pytest.mark.parametrize(
    ("workload", "name"), [("resnet50", "sgd"), ("mlp12", "adam"), ("gpt2", "adamw"), ("small_resnet18", "")]
)
def test_the_peer_is_given_an_optimizers_name_where_it_means_the_same(workload, name):
    script = small_script(workload)
    assert variants._name_of(script.make_optimizer(script.model.parameters())) == name


# --- processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [False, True])
def test_a_process_has_its_environment(tmp_path, fresh):
    apart = {"environment": {"OF_THE_CHILD": "1"}, "fresh": fresh, "log": tmp_path / "log", "limit_s": 60.0}
    assert run_apart(os.getenv, "OF_THE_CHILD", **apart) == "1"
    assert "OF_THE_CHILD" not in os.environ


@pytest.mark.parametrize(
    ("function", "argument", "reason"),
    [(time.sleep, 60, "took longer than 1 s"), (os._exit, 3, "exit code 3"), (int, "x", "ValueError: invalid literal")],
)
def test_a_process_that_fails_says_why(tmp_path, function, argument, reason):
    with pytest.raises(FailedError, match=reason):
        run_apart(function, argument, environment={}, log=tmp_path / "log", limit_s=1.0)


def test_what_a_process_started_ends_with_it(tmp_path):
    id_file = tmp_path / "id"
    run_apart(os.system, f"sleep 60 & echo $! > {id_file}", environment={}, log=tmp_path / "log", limit_s=30.0)
    state = Path("/proc", id_file.read_text().strip(), "stat")
    deadline = time.monotonic() + 5
    while state.exists() and state.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not state.exists() or state.read_text().split()[2] == "Z"


# --- the command and its table --------------------------------------------------------------------------------


def result_of(title, *, searches=None, **step_ms):
    timed = {name.replace("_", " "): {"runs": [{"step_ms": ms} for ms in times]} for name, times in step_ms.items()}
    if "advisor" in timed:
        timed["perf-advisor"] = timed.pop("advisor")
    common = {"machine": "a machine", "versions": "versions", "date": "2026-01-02", "command": "python benchmark.py"}
    return {**common, "title": title, "searches": searches or {}, "variants": timed}


def test_results_become_one_table():
    searches = {
        "peer": {"wall_s": 83.4, "stack": "amp_bf16 compile=default"},
        "perf-advisor": {"wall_s": 150.2, "stack": "precision.autocast: bfloat16", "reported": 2.0},
    }
    first = result_of(
        "first", searches=searches, baseline=[20, 20], expert=[10, 10.2], peer=[12.5, 12.5], advisor=[10, 10]
    )
    second = result_of("second", baseline=[4, 4], expert=[2, 2], peer=[2, 2], advisor=[1, 1])
    second["variants"]["peer"] = {"failed": "cannot run it: a | b"}
    text = document([first, second])
    assert (
        "| first | 20 ms (20-20) | 10.1 ms (10-10.2) | 12.5 ms (12.5-12.5) | 10 ms (10-10) | 1.010x (1.000-1.020) "
        "| 1.250x (1.250-1.250) | 83 s | 150 s |"
    ) in text
    assert "| second | 4 ms (4-4) | 2 ms (2-2) | cannot run it: a / b | 1 ms (1-1) | 2.000x (2.000-2.000) |" in text
    assert "perf-advisor over the expert: 1.421x in geometric mean over 2 workloads, lowest 1.010x (first)." in text
    assert "perf-advisor over pytorch-autotune: 1.250x in geometric mean over 1 workload, lowest" in text
    assert "- first, perf-advisor: precision.autocast: bfloat16 (its session said 2.000x)" in text
    assert text.count("- machine: a machine") == 1


def test_the_expert_is_the_fastest_of_those_who_finished():
    result = result_of("one", expert_0=[3, 3], expert_1=[2, 2], expert_2=[1])
    result["variants"]["expert 2"]["failed"] = "failed: out of memory"
    assert expert_of(result) == "expert 1"


def test_the_command_measures_in_turn_and_joins_what_was_measured(tmp_path):
    (tmp_path / "mlp12.yaml").write_text("step.zero_grad: zeros\n", encoding="utf-8")
    search = {"wall_s": 12.0, "stack": "step.zero_grad: zeros", "reported": 1.0}
    (tmp_path / "mlp12.json").write_text(json.dumps({"searches": {"perf-advisor": search}}), encoding="utf-8")
    options = ["--small", "--reuse", "--variants", "baseline,perf-advisor", "--timed", "0.05", "--results", tmp_path]
    ran = subprocess.run([sys.executable, BENCHMARK, *options, "mlp12"], capture_output=True, text=True, check=True)
    said = [line.rpartition(": ")[2] for line in ran.stderr.splitlines() if " mlp12: " in line]
    assert said == ["perf-advisor searches", "baseline", "perf-advisor", "perf-advisor", "baseline"]
    result = json.loads((tmp_path / "mlp12.json").read_text(encoding="utf-8"))
    assert {name: len(variant["runs"]) for name, variant in result["variants"].items()} == {
        "baseline": 2,
        "perf-advisor": 2,
    }
    assert document([result]) == ran.stdout.strip()
    assert "| 12-block MLP, small |" in ran.stdout
