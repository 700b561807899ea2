"""The table of docs/results.md: models by name, as written, with bfloat16 and torch.compile, and after a session.

python tests/benchmarks/by_name.py --lanes 8 --within 570 [NAME ...]
python tests/benchmarks/by_name.py --render

Rows collect in by_name.json, one for each model, mode and GPU; models that were measured are left out, so that the
first command can be repeated until all are. Both write docs/results.md anew.
"""

import argparse
import datetime
import itertools
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from catalogue import HERE, ROOT
from lanes import FailedError, Lane, run_command, run_lanes
from session import PATIENCE_S
from tables import one_line, table

ROWS, PAGE = HERE / "by_name.json", ROOT / "docs" / "results.md"
TIMM = """
    resnet18 resnet50 resnet101 resnext50_32x4d seresnet50 regnety_016 densenet121 efficientnet_b0 efficientnet_b2
    tf_efficientnetv2_s mobilenetv3_large_100 mobilevit_s ghostnet_100 convnext_tiny convnext_base convnextv2_tiny
    vit_small_patch16_224 vit_base_patch16_224 deit3_small_patch16_224 beit_base_patch16_224
    swin_tiny_patch4_window7_224 maxvit_tiny_tf_224 mixer_b16_224 edgenext_small hrnet_w18 inception_v3 xception41
    coatnet_0_rw_224
"""
TORCHVISION = """
    resnet50 wide_resnet50_2 vgg16 alexnet squeezenet1_1 shufflenet_v2_x1_0 mnasnet1_0 googlenet vit_b_16 swin_t
    fcn_resnet50 deeplabv3_resnet50 lraspp_mobilenet_v3_large fasterrcnn_resnet50_fpn retinanet_resnet50_fpn
    fcos_resnet50_fpn r3d_18 mvit_v2_s swin3d_t raft_small
"""
HUGGING_FACE = """
    bert-base-uncased distilbert-base-uncased FacebookAI/roberta-base albert-base-v2 microsoft/deberta-v3-small
    google/electra-small-discriminator gpt2 EleutherAI/pythia-160m google-t5/t5-small facebook/bart-base
    openai/whisper-tiny facebook/wav2vec2-base-960h facebook/hubert-base-ls960 google/vit-base-patch16-224
    microsoft/swin-tiny-patch4-window7-224 nvidia/segformer-b0 openai/clip-vit-base-patch32 facebook/dinov2-small
"""
LIBRARIES = {"timm": TIMM, "torchvision": TORCHVISION, "hf": HUGGING_FACE}
TARGETS = [f"{library}:{name}" for library, names in LIBRARIES.items() for name in names.split()]
MODES = ("train", "infer")
# The lines that every reader would have tried, as settings.
COMPILED = {
    "train": "precision.autocast: bfloat16\ncompile.mode: default\n",
    "infer": "precision.autocast: bfloat16\ncompile.mode: default\ninfer.grad: no_grad\n",
}
KEY = ("model", "mode", "hardware")
HEAD = """# Models by name

Each row is a session on a model by its name, in one mode: the step as the library builds the model, the speed-up with
bfloat16 autocast and `torch.compile` alone, and the one that the session found in the seconds given, with its 95 %
interval, its memory before and after, and its settings. perf-advisor chose the batch. `python
tests/benchmarks/by_name.py` writes this page.

"""
COLUMNS = ("model", "mode", "batch", "as written", "bf16, compiled", "found", "memory", "settings")
Row = dict[str, Any]


def measured(target: str, mode: str, budget_s: int, lane: Lane, folder: Path) -> Row:
    """Measure a row: a session of the target, and a check of the settings that everybody tries first."""
    files = folder / f"{target}-{mode}".replace("/", "-")
    report, compiled = files.with_suffix(".json"), files.with_suffix(".yaml")
    compiled.write_text(COMPILED[mode], encoding="utf-8")
    environment = {**lane.environment, "PERF_ADVISOR_STATE": str(folder / f"state-{lane.number}")}
    limit_s = budget_s + PATIENCE_S
    command = [*lane.prefix, sys.executable, "-m", "advisor"]
    options = ["--mode", mode, "--budget", f"{budget_s}s"]
    row: Row = {"model": target, "mode": mode, "date": datetime.date.today().isoformat(), "budget_s": budget_s}
    session = [*command, target, *options, "--headless", "--no-verify", "--skip", "batch_size", "--json", str(report)]
    try:
        run_command(session, environment, files.with_suffix(".log"), limit_s, fine=(0, 3))
        row |= _of_report(json.loads(report.read_text(encoding="utf-8")))
        if row["failed"]:
            return row
        log = files.with_suffix(".check.log")
        check = [*command, "check", str(compiled), target, *options, "--batch-size", str(row["batch"]), "--json"]
        run_command(check, environment, log, limit_s, fine=(0, 4))
        printed = log.read_text(encoding="utf-8")
        row["compiled_speedup"] = json.loads(printed[printed.index("{\n") :])["speedup"]
    except (FailedError, ValueError) as error:
        row["failed"] = one_line(error)
    return row


def _of_report(report: Row) -> Row:
    """The cells that a session's JSON report has."""
    gpus = report["hardware"]["gpus"]
    baseline, stack, workload = (report[name] or {} for name in ("baseline", "stack", "workload"))
    return {
        "hardware": gpus[0]["name"] if gpus else report["hardware"]["host"]["cpu"],
        "versions": ", ".join(f"{name} {version}" for name, version in report["versions"].items()),
        "batch": workload.get("batch_size"),
        "as_written_ms": baseline.get("step_ms"),
        "bytes_before": baseline.get("peak_reserved_bytes"),
        "bytes_after": stack.get("peak_reserved_bytes"),
        "settings": one_line(", ".join(f"{key}: {value}" for key, value in stack.get("settings", {}).items())),
        "failed": one_line((report["error"] or {}).get("message", "")),
        **{name: stack.get(name) for name in ("speedup", "ci_low", "ci_high")},
    }


def read_rows() -> dict[tuple[str, ...], Row]:
    """The measured rows, by model, mode and hardware."""
    rows = json.loads(ROWS.read_text(encoding="utf-8")) if ROWS.exists() else []
    return {tuple(row.get(name) or "" for name in KEY): row for row in rows}


def write_rows(rows: Iterable[Row]) -> None:
    """Write all rows, and the page."""
    rows = sorted(rows, key=lambda row: [row.get(name) or "" for name in KEY])
    ROWS.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    PAGE.write_text(page(rows), encoding="utf-8")


def page(rows: Iterable[Row]) -> str:
    """docs/results.md: a table for each machine, versions, date and budget."""
    conditions = ("hardware", "versions", "date", "budget_s")
    grouped: dict[str, list[list[str]]] = {}
    for row in rows:
        where = "{}, {}, {}, {} s each".format(*(row.get(name) or "unknown" for name in conditions))
        grouped.setdefault(where, []).append(_cells(row))
    return HEAD + "\n\n".join(f"## {where}\n\n{table(COLUMNS, cells)}" for where, cells in grouped.items()) + "\n"


def _cells(row: Row) -> list[str]:
    def figure(form: str, *names: str, scale: float = 1.0) -> str:
        values = [row.get(name) for name in names]
        return "–" if None in values or "" in values else form.format(*(scale * float(value) for value in values))  # noqa: RUF001

    return [
        f"`{row['model']}`",
        row["mode"],
        str(row.get("batch") or ""),
        figure("{:.3g} ms", "as_written_ms"),
        figure("{:.2f}x", "compiled_speedup"),
        figure("{:.2f}x ({:.2f}–{:.2f})", "speedup", "ci_low", "ci_high"),  # noqa: RUF001
        figure("{:.2f} → {:.2f} GiB", "bytes_before", "bytes_after", scale=2**-30),
        row.get("settings") or row.get("failed") or "nothing faster",
    ]


def main() -> None:
    """Measure the models that have no row yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "targets", nargs="*", default=TARGETS, metavar="NAME", help="such as timm:resnet50; all of them"
    )
    parser.add_argument("--lanes", type=int, default=1, metavar="N", help="measure on N GPUs at a time")
    parser.add_argument("--budget", type=int, default=120, metavar="S", help="seconds of each session (120)")
    parser.add_argument("--within", type=float, default=math.inf, metavar="S", help="begin none that would end later")
    parser.add_argument("--render", action="store_true", help="measure nothing: write the page")
    given = parser.parse_args()
    rows, lock, ends = read_rows(), threading.Lock(), time.monotonic() + given.within
    known = {(row["model"], row["mode"]) for row in rows.values() if not row.get("failed")}

    def measure(target: str, mode: str, lane: Lane, folder: Path) -> None:
        if time.monotonic() + 2 * given.budget > ends:
            return
        row = measured(target, mode, given.budget, lane, folder)
        lane.say(f"{target} {mode}", row.get("failed") or f"{row.get('speedup')}x")
        with lock:
            rows[tuple(row.get(name) or "" for name in KEY)] = row
            write_rows(rows.values())

    wanted = [] if given.render else [one for one in itertools.product(given.targets, MODES) if one not in known]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work = [lambda lane, one=one: measure(*one, lane, Path(folder)) for one in wanted]
        run_lanes(work, min(given.lanes, len(work)))
    write_rows(rows.values())


if __name__ == "__main__":
    main()
