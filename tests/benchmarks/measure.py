"""One workload, measured from start to end: the session, then all variants in turn, each in a process of its own."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import experts
import script
import torch
import torch._dynamo  # imported once, here, and not in each process
import variants
from catalogue import Options, Workload, small
from plain import time_loop
from processes import FailedError, TooSlowError, in_one_line, run_apart
from session import run_session
from small import module_of
from tables import ADVISOR, BASELINE

import advisor
from advisor.recipe.catalog import load_catalog


def measure(workload: Workload, options: Options, say: Callable[[str], None]) -> None:
    """Measure a workload; one that cannot be measured is a row with its reason."""
    measurement = Measurement(workload, options, say)
    try:
        measurement.run()
    except Exception as error:
        say(in_one_line(error))
        measurement.result["failed"] = in_one_line(error)
    measurement.write()


class Measurement:
    """One workload. Its result is written after each step."""

    def __init__(self, workload: Workload, options: Options, say: Callable[[str], None]) -> None:
        self.workload = small(workload) if options.small else workload
        self.options = options
        self.say = say
        self.caches = (options.caches / workload.name).resolve()
        self.file = options.file_of(workload)
        self.settings = self.file.with_suffix(".yaml").resolve()
        self.choices = {name: experts.stacks_of(workload, name) for name in experts.experts_of(workload)}
        self.result: dict[str, Any] = {
            "workload": workload.name,
            "title": self.workload.title,
            "family": workload.family,
            "versions": versions(),
            "date": datetime.date.today().isoformat(),
            "command": options.command,
            "variants": {},
        }

    def run(self) -> None:
        """Search, then time each variant twice, there and back."""
        module_of(self.workload.file)  # its libraries are imported once, and not in each process
        self._search()
        names = [BASELINE, ADVISOR, *self.choices]
        for name in (*names, *reversed(names)):
            self._time(name)
        self.result["finished"] = True

    def write(self) -> None:
        """Write the result to its file."""
        self.file.write_text(json.dumps(self.result, indent=1), encoding="utf-8")

    def _search(self) -> None:
        known = json.loads(self.file.read_text(encoding="utf-8")) if self.options.reuse and self.file.exists() else {}
        try:
            session = known.get("session") or run_session(
                self.workload, self.options.budget_s, self.file, self._environment(), self.caches / "state"
            )
        except FailedError as error:
            self.result["variants"][ADVISOR] = {"failed": str(error)}
            self.say(f"{ADVISOR} did not search: {error}")
        else:
            self.result["session"] = session
            self.say(f"{ADVISOR} searched for {session['wall_s']:.0f} s: {session['settings']}")
        self.write()

    def _time(self, name: str) -> None:
        variant = self.result["variants"].setdefault(name, {"runs": []})
        if variant.get("failed"):
            return
        try:
            timed = self._time_expert(name, variant) if name in self.choices else self._time_other(name)
            self.result.setdefault("machine", timed.pop("machine"))
            variant["runs"].append(timed)
            self.say(f"{name}: {timed['step_ms']:.4g} ms")
        except FailedError as error:
            variant["failed"] = f"failed: {error}"
            self.say(f"{name} {variant['failed']}")
        self.write()

    def _time_other(self, name: str) -> dict[str, Any]:
        settings = self.result["session"]["settings"] if name == ADVISOR else {}
        needed = load_catalog().environment(settings)
        return self._apart(name, time_variant, self.workload, name, self.settings, self.options, needed=needed)

    def _time_expert(self, name: str, variant: dict[str, Any]) -> dict[str, Any]:
        """Time the strongest stack that runs; each attempt has a process, since a failed capture spoils it."""
        while True:
            choices, *weaker = self.choices[name]
            try:
                timed = self._apart(name, time_expert, self.workload, name, choices, self.options)
            except FailedError as error:
                variant.setdefault("fallbacks", []).append(f"{choices}: {error}")
                if isinstance(error, TooSlowError):  # compiling takes as long without a graph
                    weaker = [other for other in weaker if not other.compile_mode]
                if not weaker:
                    raise
                self.say(f"{name} falls back: {variant['fallbacks'][-1]}")
                self.choices[name] = tuple(weaker)
            else:
                variant["stack"] = experts.described(self.workload, name, choices)
                return timed

    def _apart(self, name: str, function: Any, *arguments: Any, needed: dict[str, str] | None = None) -> Any:
        """Call a function in a process of its own; a fresh interpreter where settings need the environment."""
        return run_apart(
            function,
            *arguments,
            environment={**self._environment(), **(needed or {})},
            fresh=bool(needed),
            log=self.file.with_suffix(f".{name.replace(' ', '-')}.log").resolve(),
            limit_s=self.options.limit_s,
        )

    def _environment(self) -> dict[str, str]:
        """The compilers' caches; the expert's stack is timed after the session, and with its caches."""
        return {"TORCHINDUCTOR_CACHE_DIR": f"{self.caches}/inductor", "TRITON_CACHE_DIR": f"{self.caches}/triton"}


# --- run in processes of their own ----------------------------------------------------------------------------


def time_variant(workload: Workload, name: str, settings: Path, options: Options) -> dict[str, Any]:
    """Time the loop as it was written, or with exported settings."""
    written = script.load(workload, _device())
    return _timed(*(variants.tuned(written, settings) if name == ADVISOR else variants.baseline(written)), options)


def time_expert(workload: Workload, name: str, choices: Any, options: Options) -> dict[str, Any]:
    """Time the expert's stack with these choices."""
    return _timed(*experts.write(workload, name, script.load(workload, _device()), choices), options)


def _timed(step: Any, data: Any, options: Options) -> dict[str, Any]:
    return {**dataclasses.asdict(time_loop(step, data, options.timed_s)), "machine": machine()}


def machine() -> str:
    """The GPU's name, or the processor's kind with its cores."""
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, no GPU"


def versions() -> str:
    """The versions that decide speeds, in one line."""
    packages = ("torch", "torchvision", "torchaudio", "timm", "transformers", "torch-geometric")
    found = [f"{name} {version}" for name in packages if (version := _version_of(name))]
    return f"Python {platform.python_version()}, {', '.join(found)}, perf-advisor {advisor.__version__}"


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
