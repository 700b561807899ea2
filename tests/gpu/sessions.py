"""Whole sessions on several workloads, each against a plain loop of the same minutes.

    python tests/gpu/sessions.py 80 reports resnet50 mlp12 gpt2 small_resnet18 encoder recommender autoencoder
    python tests/gpu/sessions.py 80 reports jpeg resnet50,infer,1 resnet50,infer,128
    python tests/gpu/sessions.py 150 reports tests/cpu/workloads/convnet.py

The first argument is the budget of each session in seconds, the second a folder for the JSON reports, from which
``recipe_table.py`` makes its table. A workload is the name of a file in ``workloads/`` or a path; it may name a mode
and a batch size. After a session that trains on one batch, the plain loop and the same loop with the exported
settings are timed by ``plain_loop.py``, which shares no code with the trials.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def file_of(name):
    return Path(name) if name.endswith(".py") else HERE / "workloads" / f"{name}.py"


def run_session(workload, budget_s, report, settings):
    name, _, options = workload.partition(",")
    command = [sys.executable, "-m", "advisor", f"{file_of(name)}:build", "--headless"]
    command += ["--budget", f"{budget_s}s", "--export", str(settings), "--json", str(report)]
    if options:
        mode, _, batch_size = options.partition(",")
        command += ["--mode", mode, "--batch-size", batch_size]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(report.read_text(encoding="utf-8"))


def plain_loops(workload, settings):
    """What plain loops of the next minute show, or an empty text where the plain loop does not know the workload."""
    if "," in workload or workload == "jpeg" or workload.endswith(".py"):
        return ""
    command = [sys.executable, HERE / "plain_loop.py", file_of(workload), settings]
    return subprocess.check_output(command, text=True).strip()


def main():
    budget_s, folder, workloads = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    folder.mkdir(parents=True, exist_ok=True)
    for workload in workloads:
        with tempfile.TemporaryDirectory() as temporary:
            settings = Path(temporary, "tuned.yaml")
            try:
                name = Path(workload).stem if workload.endswith(".py") else workload.replace(",", "-")
                report = run_session(workload, budget_s, folder / f"{name}.json", settings)
                print(line_of(workload, report, plain_loops(workload, settings)), flush=True)
            except subprocess.CalledProcessError as error:
                print(f"{workload:16} failed: {error}", flush=True)


def line_of(workload, report, plain):
    stack = report["stack"]
    line = (
        f"{workload:16} {report['session_s']:4.0f} s  {stack['baseline_step_ms']:.3f} to {stack['step_ms']:.3f} ms, "
        f"{stack['speedup']:.3f}x ({stack['ci_low']:.3f}-{stack['ci_high']:.3f})  {stack['settings']}"
    )
    if not plain:
        return line
    difference = stack["speedup"] / float(plain.rpartition(" ")[2].rstrip("x")) - 1
    return f"{line}\n{'':16}  plain loop: {plain}; reported {difference:+.1%}"


if __name__ == "__main__":
    main()
