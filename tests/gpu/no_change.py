"""How often a candidate that changes nothing is called faster or slower: whole sessions with nothing else in them.

    python tests/gpu/no_change.py 25 mlp12 small_resnet18 recommender resnet50

A recipe whose values all do nothing is loaded from a folder, as a third party's would be, and each of its values is one
candidate: measured in a process of its own, judged by its interval of 99 %, and confirmed when it is a close call.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from planted import recipe_text

WORKLOADS = Path(__file__).with_name("workloads")
SECONDS_PER_CANDIDATE = 3


def session(workload, count, folder):
    """The records of a session whose only candidates change nothing."""
    report = Path(folder, f"{workload}.json")
    command = [sys.executable, "-m", "advisor", f"{WORKLOADS / workload}.py:build", "--headless", "--only", "nothing"]
    command += ["--recipes", str(folder), "--budget", f"{20 + SECONDS_PER_CANDIDATE * count}s", "--json", str(report)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(report.read_text(encoding="utf-8"))


def main():
    count, workloads = int(sys.argv[1]), sys.argv[2:]
    judged = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        options = {"key": "control.nothing", "numerics": "EXACT", "stage": "GLOBAL"}
        text = recipe_text("nothing", candidates=f"return list(range(1, {count} + 1))", **options)
        Path(folder, "nothing.py").write_text(text.replace("default = False", "default = 0"), encoding="utf-8")
        for workload in workloads:
            report = session(workload, count, folder)
            records = [trial for trial in report["trials"] if trial["recipe"] == "nothing" and trial["speedup"]]
            false = [trial for trial in records if trial["verdict"] in ("faster", "slower")]
            confirmed = sum(trial["confirmed"] for trial in records)
            speedups = [trial["speedup"] for trial in records]
            judged, wrong = judged + len(records), wrong + len(false)
            print(
                f"{workload:16} {report['baseline']['step_ms']:8.3f} ms  {len(records)} candidates "
                f"{min(speedups):.3f}x to {max(speedups):.3f}x, within {report['baseline']['half_width']:.1%}, "
                f"{confirmed} confirmed in turn, {len(false)} called different, {report['session_s']:.0f} s",
                flush=True,
            )
            for trial in false:
                print("    ", trial["verdict"], trial["settings"], trial["speedup"], trial["ci_low"], trial["ci_high"])
    print(f"{wrong} of {judged} candidates that change nothing were called faster or slower")


if __name__ == "__main__":
    main()
