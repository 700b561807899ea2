"""What is compiled beside a trial is found in the compiler's cache when its own turn comes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

WORKLOADS = Path(__file__).parent / "workloads"
CORES = 8
LONGEST_S = 300
# In a process of its own, for the fork server takes over where the caches are.
RUNS = """
import json, sys
from dataclasses import replace
from advisor.records import TargetSpec, TrialKind, TrialSpec
from advisor.runner.trials import Runner

if __name__ == "__main__":
    Runner.prepare()
    runner, folder = Runner(), sys.argv[2]
    usual = {"optimizer.implementation": "fused", "precision.autocast": "bfloat16", "step.cuda_graph": True}

    def spec(scope):
        settings = {**usual, "compile.scope": scope}
        target = TargetSpec("encoder.py:build", sys.argv[1])
        return TrialSpec(scope, target, settings, 0.5, 1.0, 200.0, f"{folder}/{scope}.log")

    runner.compile_beside(replace(spec("regional"), kind=TrialKind.COMPILE, log_path=f"{folder}/beside.log"))
    first = runner.run(spec("with_loss"), lambda message: None)
    early = runner.compiled_beside(200.0)
    second = runner.run(spec("regional"), lambda message: None)
    told = [(r.outcome, r.warmup_s, r.disturbed, len(r.blocks)) for r in (first, early, second)]
    print(json.dumps(told))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < CORES, reason="two compile beside each other on eight cores or more")
def test_what_compiled_beside_a_trial_is_in_the_cache(tmp_path):
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    command = [sys.executable, "-c", RUNS, str(WORKLOADS), str(tmp_path)]
    told = subprocess.check_output(command, text=True, timeout=LONGEST_S, env={**os.environ, **caches})
    (first, first_s, disturbed, blocks), (beside, beside_s, *_), (second, second_s, *_) = json.loads(told)
    assert (first, beside, second) == ("measured", "measured", "measured")
    assert blocks
    assert not disturbed
    assert first_s > 5
    assert second_s < 0.5 * beside_s
