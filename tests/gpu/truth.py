"""Whether the trials tell the truth: the same loops, timed by trials and by plain loops, alternately in one run.

    python tests/gpu/truth.py tests/gpu/workloads/mlp12.py tuned.yaml

Alternating matters: on a shared machine a host-bound loop can be a quarter slower for a minute.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from advisor.recipe.settings import Settings
from advisor.records import TargetSpec, TrialSpec
from advisor.runner.trials import Runner

ROUNDS = 4
PLAIN_LOOP = Path(__file__).with_name("plain_loop.py")


def trial_ms(runner, workload, settings):
    with tempfile.TemporaryDirectory() as folder:
        spec = TrialSpec(
            trial_id="truth",
            target=TargetSpec(f"{workload}:build", str(Path.cwd())),
            settings=dict(settings),
            measure_s=1.5,
            warmup_limit_s=2.0,
            timeout_s=200.0,
            log_path=str(Path(folder, "log")),
        )
        result = runner.run(spec, lambda message: None)
    assert result.measured, result.reason
    return statistics.median(block.step_ms for block in result.blocks)


def plain_ms(workload, settings_file, which):
    return float(subprocess.check_output([sys.executable, PLAIN_LOOP, workload, settings_file, which]))


def main():
    workload, settings_file = sys.argv[1:3]
    settings = Settings.from_file(settings_file)
    Runner.prepare()
    runner = Runner()
    times = {name: [] for name in ("trial, before", "plain, before", "trial, tuned", "plain, tuned")}
    for _ in range(ROUNDS):
        times["trial, before"].append(trial_ms(runner, workload, {}))
        times["plain, before"].append(plain_ms(workload, settings_file, "plain"))
        times["trial, tuned"].append(trial_ms(runner, workload, settings))
        times["plain, tuned"].append(plain_ms(workload, settings_file, "tuned"))
    for name, values in times.items():
        print(f"{name:14} {statistics.median(values):8.3f} ms  {[round(value, 3) for value in values]}")
    medians = {name: statistics.median(values) for name, values in times.items()}
    trial = medians["trial, before"] / medians["trial, tuned"]
    plain = medians["plain, before"] / medians["plain, tuned"]
    print(f"speed-up by trials {trial:.3f}x, by plain loops {plain:.3f}x, {trial / plain - 1:+.1%}")


if __name__ == "__main__":
    main()
