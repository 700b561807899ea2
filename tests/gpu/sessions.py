"""Whole sessions on several workloads, each against a plain loop of the same minutes.

    python tests/gpu/sessions.py 80 resnet50 mlp12 gpt2 small_resnet18 encoder recommender autoencoder

The first argument is the budget of each session in seconds. After a session the plain loop and the same loop with the
exported settings are timed by ``plain_loop.py``, which shares no code with the trials.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def compare(workload, budget_s, folder):
    """The session's report, and the speed-up that plain loops of the next minute show."""
    target, settings, report = HERE / "workloads" / f"{workload}.py", Path(folder, "t.yaml"), Path(folder, "r.json")
    command = [sys.executable, "-m", "advisor", f"{target}:build", "--headless", "--budget", f"{budget_s}s"]
    command += ["--export", str(settings), "--json", str(report)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    plain = subprocess.check_output([sys.executable, HERE / "plain_loop.py", target, settings], text=True)
    return json.loads(report.read_text(encoding="utf-8")), plain.strip()


def main():
    budget_s, workloads = int(sys.argv[1]), sys.argv[2:]
    for workload in workloads:
        with tempfile.TemporaryDirectory() as folder:
            try:
                report, plain = compare(workload, budget_s, folder)
            except subprocess.CalledProcessError as error:
                print(f"{workload:16} failed: {error}", flush=True)
                continue
        print(line_of(workload, report, plain), flush=True)


def line_of(workload, report, plain):
    stack, ratio = report["stack"], float(plain.rpartition(" ")[2].rstrip("x"))
    times = f"{stack['baseline_step_ms']:.3f} to {stack['step_ms']:.3f} ms"
    speedup = f"{stack['speedup']:.3f}x ({stack['ci_low']:.3f}-{stack['ci_high']:.3f})"
    difference = f"{stack['speedup'] / ratio - 1:+.1%}"
    return (
        f"{workload:16} {report['session_s']:4.0f} s  {times}, {speedup}  plain loop: {plain}  "
        f"difference {difference}  {stack['settings']}"
    )


if __name__ == "__main__":
    main()
