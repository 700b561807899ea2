"""Whether the trials tell the truth: the same loops, timed by trials and by plain loops, alternately in one run.

    python tests/gpu/truth.py tests/gpu/workloads/mlp12.py tuned.yaml

Alternating matters: on a shared machine a host-bound loop can be a quarter slower for a minute. The plain loops are
those of the benchmark, which share no code with the trials, each in a process of its own.
"""

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from catalogue import Workload
from measure import time_variant
from options import Options
from processes import run_apart
from tables import ADVISOR, BASELINE

from advisor.recipe.settings import Settings
from advisor.records import TargetSpec, TrialSpec
from advisor.runner.trials import Runner

ROUNDS, LIMIT_S = 4, 200.0


def trial_ms(runner, workload, settings, folder):
    spec = TrialSpec(
        trial_id="truth",
        target=TargetSpec(workload.target, str(Path.cwd())),
        settings=dict(settings),
        measure_s=1.5,
        warmup_limit_s=2.0,
        timeout_s=LIMIT_S,
        log_path=str(folder / "trial.log"),
    )
    result = runner.run(spec, lambda message: None)
    assert result.measured, result.reason
    return statistics.median(block.step_ms for block in result.blocks)


def plain_ms(workload, variant, settings_file, folder):
    options = Options(folder, folder, (variant,), budget_s=0, command="", timed_s=2.0)
    arguments = (workload, variant, settings_file, options)
    log = folder / "plain.log"
    return run_apart(time_variant, *arguments, environment={}, fresh=True, log=log, limit_s=LIMIT_S)["step_ms"]


def main():
    file, settings_file = (Path(argument).resolve() for argument in sys.argv[1:3])
    workload = Workload(file.stem, file.stem, "", f"{file}:build")
    settings = Settings.from_file(settings_file)
    Runner.prepare()
    runner = Runner()
    times = {name: [] for name in ("trial, before", "plain, before", "trial, tuned", "plain, tuned")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(ROUNDS):
            times["trial, before"].append(trial_ms(runner, workload, {}, folder))
            times["plain, before"].append(plain_ms(workload, BASELINE, None, folder))
            times["trial, tuned"].append(trial_ms(runner, workload, settings, folder))
            times["plain, tuned"].append(plain_ms(workload, ADVISOR, settings_file, folder))
    for name, values in times.items():
        print(f"{name:14} {statistics.median(values):8.3f} ms  {[round(value, 3) for value in values]}")
    medians = {name: statistics.median(values) for name, values in times.items()}
    trial = medians["trial, before"] / medians["trial, tuned"]
    plain = medians["plain, before"] / medians["plain, tuned"]
    print(f"speed-up by trials {trial:.3f}x, by plain loops {plain:.3f}x, {trial / plain - 1:+.1%}")


if __name__ == "__main__":
    main()
