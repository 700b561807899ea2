"""A session compiles what comes next beside what it compiles, and its trials are timed alone all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ENCODER = Path(__file__).parent / "workloads" / "encoder.py"
CORES = 8
BUDGET_S = 70


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < CORES, reason="two compile beside each other on eight cores or more")
def test_the_second_compilation_is_over_when_the_first_is(tmp_path):
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    only = ("--only", "compile_scope,autocast,fused_optimizer,step_graph")
    command = [sys.executable, "-m", "advisor", f"{ENCODER}:build", "--budget", f"{BUDGET_S}s", "--json", "-", *only]
    told = subprocess.check_output(command, text=True, timeout=3 * BUDGET_S, env={**os.environ, **caches})
    scopes = {
        trial["settings"]["compile.scope"]: trial
        for trial in json.loads(told)["trials"]
        if trial["recipe"] == "compile_scope"
    }
    first, second = scopes["with_loss"], scopes["regional"]
    assert (first["outcome"], second["outcome"]) == ("measured", "measured")
    assert first["warmup_s"] > 5
    assert second["warmup_s"] < 0.5 * first["warmup_s"]
    assert first["speedup"] > 4
    assert second["speedup"] > 4
