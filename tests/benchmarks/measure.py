"""One workload, measured from start to end: the session, then all variants in turn, each in an interpreter of its own.

python tests/benchmarks/measure.py times a variant for the benchmark; see ``main``.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import experts
import script
import torch
import variants
from catalogue import WORKLOADS, Options, Workload
from expert import Choices
from lanes import FailedError, Lane, TooSlowError, in_one_line, run_command
from plain import time_loop
from session import run_session
from tables import ADVISOR, BASELINE

import advisor
from advisor.recipe.catalog import load_catalog


def measure(workload: Workload, options: Options, lane: Lane) -> None:
    """Measure a workload on a lane; one that cannot be measured is a row with its reason."""
    measurement = Measurement(workload, options, lane)
    try:
        measurement.run()
    except Exception as error:
        measurement.say(in_one_line(error))
        measurement.result["failed"] = in_one_line(error)
    measurement.write()
    shutil.rmtree(measurement.caches, ignore_errors=True)


class Measurement:
    """One workload. Its result is written after each step."""

    def __init__(self, workload: Workload, options: Options, lane: Lane) -> None:
        self.workload, self.options, self.lane = workload, options, lane
        self.caches = (options.caches / workload.name).resolve()
        self.file = options.file_of(workload)
        self.settings = self.file.with_suffix(".yaml").resolve()
        # The stack of each expert, then those to fall back to, one after the other.
        found = experts.experts_of(workload).items()
        self.choices = {name: (choices, *choices.weaker()) for name, (_, choices) in found}
        self.result: dict[str, Any] = {
            "workload": workload.name,
            "title": workload.title,
            "family": workload.family,
            "versions": versions(),
            "date": datetime.date.today().isoformat(),
            "command": options.command,
            "variants": {},
        }

    def run(self) -> None:
        """Search, then time each variant twice, the second time in reverse order."""
        self._search()
        names = [BASELINE, ADVISOR, *self.choices]
        for name in (*names, *reversed(names)):
            self._time(name)
        self.result["finished"] = True

    def say(self, text: str) -> None:
        """Print one line of progress."""
        self.lane.say(self.workload.name, text)

    def write(self) -> None:
        """Write the result to its file."""
        self.file.write_text(json.dumps(self.result, indent=1), encoding="utf-8")

    def _search(self) -> None:
        known = json.loads(self.file.read_text(encoding="utf-8")) if self.options.reuse and self.file.exists() else {}
        try:
            session = known.get("session") or run_session(
                self.workload,
                self.options.budget_s,
                self.file,
                prefix=self.lane.prefix,
                environment=self._environment(),
                state=self.caches / "state",
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
        return self._apart(name, str(self.settings), load_catalog().environment(settings))

    def _time_expert(self, name: str, variant: dict[str, Any]) -> dict[str, Any]:
        """Time the strongest stack that runs; each attempt has a process, since a failed capture spoils it."""
        while True:
            choices, *weaker = self.choices[name]
            try:
                timed = self._apart(name, json.dumps(dataclasses.asdict(choices)), {})
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

    def _apart(self, name: str, how: str, needed: dict[str, str]) -> dict[str, Any]:
        """Time a variant in a new interpreter, with the environment variables that its settings need."""
        log = self.file.with_suffix(f".{name.replace(' ', '-')}.log").resolve()
        timed = log.with_suffix(".json")
        arguments = [__file__, self.workload.name, name, how, str(self.options.timed_s), str(timed)]
        command = [*self.lane.prefix, sys.executable, *arguments]
        run_command(command, {**self._environment(), **needed}, log, self.options.limit_s)
        result: dict[str, Any] = json.loads(timed.read_text(encoding="utf-8"))
        timed.unlink()
        return result

    def _environment(self) -> dict[str, str]:
        """The lane's GPU and the compilers' caches; the expert's stack is timed with the caches of the session."""
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{self.caches}/inductor", "TRITON_CACHE_DIR": f"{self.caches}/triton"}
        return {**self.lane.environment, **caches}


def main(name: str, variant: str, how: str, timed_s: str, file: str) -> None:
    """Time a variant of a workload and write the figures to a file.

    ``how`` is the file of the settings, or an expert's choices as JSON.
    """
    workload = WORKLOADS[name]
    written = script.load(workload, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if variant == BASELINE:
        loop = variants.baseline(written)
    elif variant == ADVISOR:
        loop = variants.tuned(written, Path(how))
    else:
        loop = experts.write(workload, variant, written, Choices(**json.loads(how)))
    timed = {**dataclasses.asdict(time_loop(*loop, float(timed_s))), "machine": machine()}
    Path(file).write_text(json.dumps(timed), encoding="utf-8")


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


if __name__ == "__main__":
    main(*sys.argv[1:])
