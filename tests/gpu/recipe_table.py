"""The verdicts of several sessions as a table: a row per recipe and value, a column per workload.

python tests/gpu/recipe_table.py reports/*.json
"""

import json
import sys
from pathlib import Path

MARKS = {"faster": "+", "slower": "-", "same": "=", "unclear": "?"}
MARKS["no measurable difference"] = "="  # in reports of schema 1


def cell(trial):
    """A speed-up with its verdict (+ faster, - slower, = the same, ? unclear), or why there is none."""
    if trial["verdict"] in ("failed", "skipped"):
        return "failed: " + trial["reason"][:60] if trial["verdict"] == "failed" else ""
    alone = "" if len(trial["settings"]) <= 1 else " on the stack"
    off = " (already on, here off)" if trial.get("already_on") else ""
    return f"{trial['speedup']:.2f}x {MARKS[trial['verdict']]}{alone}{off}"


def rows_of(reports):
    """Cells by row name and workload."""
    rows = {}
    for workload, report in reports.items():
        for trial in report["trials"]:
            values = [str(value).lower() for value in trial["candidate"].values()]
            name = "=".join([trial["recipe"], *values])
            rows.setdefault(name, {})[workload] = cell(trial)
    return {name: cells for name, cells in sorted(rows.items()) if any(cells.values())}


def main():
    reports = {Path(path).stem: json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:]}
    print("| recipe |", " | ".join(reports), "|")
    print("| --- |", " | ".join("---" for _ in reports), "|")
    for name, cells in rows_of(reports).items():
        print(f"| {name} |", " | ".join(cells.get(workload, "") for workload in reports), "|")


if __name__ == "__main__":
    main()
