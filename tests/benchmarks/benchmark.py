"""The baseline, an expert's stack, a peer's and perf-advisor's, timed by one plain loop. The README has the details.

python tests/benchmarks/benchmark.py --results results resnet50 mlp12
python tests/benchmarks/benchmark.py --table results/*.json
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import experts
import scripts
import torch
import torch._dynamo  # imported once, here, and not in each process
import variants
from plain import time_loop
from processes import FailedError, run_apart
from scripts import ROOT, WORKLOADS, Workload
from tables import ADVISOR, BASELINE, EXPERT, PEER, PEER_PACKAGE, document

import advisor
from advisor.catalog import load_catalog
from advisor.export.settings_file import hardware_line
from advisor.hardware import inspect_hardware
from advisor.settings import Settings

VARIANTS = (BASELINE, EXPERT, PEER, ADVISOR)
# How much longer than its budget a session may take before it is ended: a busy machine is not a session that hangs.
PATIENCE_S = 120.0


def main() -> None:
    options = _options()
    if options.table:
        results = [json.loads(path.read_text(encoding="utf-8")) for path in options.table]
    else:
        options.results.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            caches = options.caches or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            results = [Benchmark(WORKLOADS[name], options, caches).run() for name in options.workloads or WORKLOADS]
    print(document(results))


class Benchmark:
    """One workload: the searches, then all variants in turn. What is known is written after each step."""

    def __init__(self, workload: Workload, options: argparse.Namespace, caches: Path) -> None:
        self.workload = scripts.small(workload) if options.small else workload
        self.options = options
        self.caches = caches
        self.file = options.results / f"{workload.name}.json"
        self.settings = self.file.with_suffix(".yaml")
        self.peers_cache = self.file.with_suffix(".peer.json")
        self.result: dict[str, Any] = {
            "workload": workload.name,
            "title": workload.title + (", small" if options.small else ""),
            "machine": hardware_line(inspect_hardware()),
            "versions": _versions(),
            "date": datetime.date.today().isoformat(),
            "command": shlex.join(["python", *sys.argv]),
            "searches": {},
            "variants": {},
        }

    def run(self) -> dict[str, Any]:
        known = json.loads(self.file.read_text(encoding="utf-8"))["searches"] if self._reuses() else {}
        for name, search in ((ADVISOR, self._session), (PEER, self._peers_search)):
            if name in self.options.variants:
                self._search(name, search, known)
        names = self._timed()
        for _ in range(self.options.rounds):
            for name in (*names, *reversed(names)):
                self._time(name)
        return self.result

    def _reuses(self) -> bool:
        return self.options.reuse and self.file.exists()

    def _search(self, name: str, search: Any, known: dict[str, Any]) -> None:
        self._say(f"{name} searches")
        try:
            self.result["searches"][name] = known.get(name) or search()
        except FailedError as error:
            self.result["variants"][name] = {"failed": str(error)}
        self._write()

    def _session(self) -> dict[str, Any]:
        """perf-advisor's session, run as a user runs it."""
        report, log = self.file.with_suffix(".report.json"), self.file.with_suffix(f".{ADVISOR}.log")
        budget_s = self.options.budget or self.workload.budget_s
        command = [sys.executable, "-m", "advisor", self.workload.target, "--headless", "--budget", f"{budget_s}s"]
        command += ["--skip", "batch_size", "--export", str(self.settings.resolve()), "--json", str(report.resolve())]
        if not self.workload.trains:
            command += ["--mode", "infer", "--batch-size", str(self.workload.batch_size)]
        environment = {**os.environ, **self._environment(ADVISOR), "PERF_ADVISOR_STATE": str(self.caches / "state")}
        started = time.perf_counter()
        try:
            with log.open("wb") as file:
                subprocess.run(
                    command,
                    check=True,
                    cwd=ROOT,
                    env=environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=budget_s + PATIENCE_S,
                )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise FailedError(f"the session failed, see {log.name}: {type(error).__name__}") from error
        wall_s = time.perf_counter() - started
        stack = json.loads(report.read_text(encoding="utf-8"))["stack"] or {}
        found = ", ".join(f"{key}: {value}" for key, value in Settings.from_file(self.settings).items())
        return {"wall_s": wall_s, "budget_s": budget_s, "stack": found or "nothing", "reported": stack.get("speedup")}

    def _peers_search(self) -> dict[str, Any]:
        if self.workload.no_peer:
            raise FailedError(f"cannot run it: {self.workload.no_peer}")
        if _version_of(PEER_PACKAGE) is None:
            raise FailedError(f"{PEER_PACKAGE} is not installed")
        self.peers_cache.unlink(missing_ok=True)
        return self._apart(PEER, search_with_peer, self.workload, self.options.peer_budget, limit_s=1200.0)

    def _timed(self) -> list[str]:
        """The variants that can be timed, several of the expert's where all are asked for."""
        names = [name for name in VARIANTS if name in self.options.variants and name not in self.result["variants"]]
        if EXPERT in names and self.options.all_experts:
            place = names.index(EXPERT)
            names[place : place + 1] = [
                f"{EXPERT} {index}" for index in range(len(experts.EXPERTS[self.workload.name]))
            ]
        return names

    def _time(self, name: str) -> None:
        variant = self.result["variants"].setdefault(name, {"runs": []})
        if variant.get("failed"):
            return
        self._say(name)
        try:
            timed = self._apart(name, time_variant, self.workload, name, self.settings, self.options)
            variant["runs"].append(timed)
        except FailedError as error:
            variant["failed"] = f"failed: {error}"
        if name.startswith(EXPERT):
            variant["stack"] = _expert(self.workload, name).__doc__
        self._write()

    def _apart(self, name: str, function: Any, *arguments: Any, limit_s: float | None = None) -> Any:
        needed = load_catalog().environment(Settings.from_file(self.settings)) if name == ADVISOR else {}
        return run_apart(
            function,
            *arguments,
            environment={**self._environment(name.partition(" ")[0]), **needed},
            fresh=bool(needed),
            log=self.file.with_suffix(f".{name.replace(' ', '-')}.log").resolve(),
            limit_s=limit_s or self.options.limit,
        )

    def _environment(self, name: str) -> dict[str, str]:
        """Compilers' caches apart, so that no tool's search profits from another's."""
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(self.caches / name / "inductor"),
            "TRITON_CACHE_DIR": str(self.caches / name / "triton"),
            "PYTORCH_AUTOTUNE_CACHE": str(self.peers_cache.resolve()),
        }

    def _write(self) -> None:
        self.file.write_text(json.dumps(self.result, indent=1), encoding="utf-8")

    def _say(self, what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {self.workload.name}: {what}", file=sys.stderr, flush=True)


# --- run in processes of their own ----------------------------------------------------------------------------


def time_variant(workload: Workload, name: str, settings: Path, options: argparse.Namespace) -> dict[str, Any]:
    script = scripts.load(workload, _device())
    if name == BASELINE:
        step, data = variants.baseline(script)
    elif name == ADVISOR:
        step, data = variants.tuned(script, settings)
    elif name == PEER:
        (step, data), _ = variants.peer(script, options.peer_budget)
    else:
        step, data = _expert(workload, name)(script)
    return dataclasses.asdict(time_loop(step, data, options.timed))


def search_with_peer(workload: Workload, budget: str) -> dict[str, Any]:
    script = scripts.load(workload, _device())
    started = time.perf_counter()
    _, result = variants.peer(script, budget)
    return {"wall_s": time.perf_counter() - started, "budget": budget, "stack": result.config.label}


def _expert(workload: Workload, name: str) -> Any:
    return experts.EXPERTS[workload.name][int(name.removeprefix(EXPERT) or 0)]


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


# --- the command line -----------------------------------------------------------------------------------------


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"all by default: {', '.join(WORKLOADS)}")
    parser.add_argument("--results", type=Path, default=Path("benchmark-results"), help="a folder for what is found")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="measure nothing: join these results")
    parser.add_argument("--variants", type=_names, default=VARIANTS, help=f"some of {','.join(VARIANTS)}")
    parser.add_argument("--budget", type=int, metavar="S", help="seconds of perf-advisor's session, for all workloads")
    parser.add_argument("--peer-budget", default="balanced", help="the peer's budget: fast, balanced, max, or seconds")
    parser.add_argument("--timed", type=float, default=1.5, metavar="S", help="seconds timed in each process")
    parser.add_argument("--rounds", type=int, default=1, help="turns of the variants, there and back; 0 only searches")
    parser.add_argument("--limit", type=float, default=300.0, metavar="S", help="the longest that a process may take")
    parser.add_argument("--all-experts", action="store_true", help="time all that the expert might write")
    parser.add_argument("--reuse", action="store_true", help="search no more where the results hold what was found")
    parser.add_argument(
        "--caches", type=Path, metavar="DIR", help="keep compilers' caches there; empty ones by default"
    )
    parser.add_argument("--small", action="store_true", help="small sizes, to try this out without a GPU")
    options = parser.parse_args()
    unknown = [name for name in options.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"there is no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    return options


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(VARIANTS):
        raise argparse.ArgumentTypeError(f"give some of {','.join(VARIANTS)}")
    return names


def _versions() -> str:
    packages = ("torch", "torchvision", PEER_PACKAGE)
    found = ", ".join(f"{name} {_version_of(name) or 'not installed'}" for name in packages)
    return f"Python {platform.python_version()}, {found}, perf-advisor {advisor.__version__}"


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
