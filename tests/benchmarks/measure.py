"""One workload, measured from start to end: the searches, then all variants in turn, each in a process of its own."""

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
import yaml
from catalogue import Workload, small
from options import Options
from plain import time_loop
from processes import FailedError, TooSlowError, run_apart
from session import Session, Settings, run_session
from small import module_of
from tables import ADVISOR, BASELINE, EXPERT, MOMENTS_S, PYTHON_FILE, not_as_reported

import advisor
from advisor.recipe.catalog import load_catalog


class Measurement:
    """One workload. Its result is written after each step."""

    def __init__(self, workload: Workload, options: Options, say: Callable[[str], None]) -> None:
        self.workload = small(workload) if options.small else workload
        self.options = options
        self.say = say
        self.caches = options.caches / workload.name
        self.file = options.results / f"{workload.name}.json"
        self.choices = {name: experts.stacks_of(workload, name) for name in experts.experts_of(workload)}
        self.settings: dict[str, Path] = {}
        self.result: dict[str, Any] = {
            "workload": workload.name,
            "title": self.workload.title,
            "family": workload.family,
            "versions": versions(),
            "date": datetime.date.today().isoformat(),
            "command": options.command,
            "searches": {},
            "variants": {},
        }

    def run(self) -> None:
        """Search and time, as far as the options say."""
        module_of(self.workload.file)  # its libraries are imported once, and not in each process
        known = json.loads(self.file.read_text(encoding="utf-8"))["searches"] if self._reuses() else {}
        if ADVISOR in self.options.variants:
            self._search(known.get(ADVISOR))
        names = self._timed()
        if self.options.exports:
            self._time_exports(names)
        else:
            for name in (*names, *reversed(names)) * self.options.rounds:
                self._time(name)
        self.result["finished"] = True
        self._write()

    def _time_exports(self, names: list[str]) -> None:
        """Time each variant once, the plain loop at both ends; once more the files that are not as fast as reported."""
        for name in (*names, BASELINE):
            self._time(name)
        for name in not_as_reported(self.result):
            self._time(name)

    def _reuses(self) -> bool:
        return self.options.reuse and self.file.exists()

    def _search(self, known: dict[str, Any] | None) -> None:
        try:
            found = known or self._session()
            self.result["searches"][ADVISOR] = found
            self.say(f"{ADVISOR} searched for {found['wall_s']:.0f} s: {found['stack']}")
        except FailedError as error:
            self.result["variants"][ADVISOR] = {"failed": str(error)}
            self.say(f"{ADVISOR} did not search: {error}")
        self._write()

    def _session(self) -> dict[str, Any]:
        session = run_session(
            self.workload, self.options.budget_s, self.file, self._environment(), self.caches / "state"
        )
        found = ", ".join(f"{key}: {value}" for key, value in session.settings.items())
        return {**dataclasses.asdict(session), "stack": found or "nothing", "known": self._known(session)}

    def _known(self, session: Session) -> dict[str, Settings | None]:
        """The best known settings at each moment of the table, by the moment's seconds."""
        return {str(moment_s): session.known_at(moment_s) for moment_s in MOMENTS_S}

    def _timed(self) -> list[str]:
        """The variants to time: perf-advisor's are its distinct stacks."""
        failed = self.result["variants"]
        names = [name for name in self.options.variants if name not in failed and name not in (ADVISOR, EXPERT)]
        if ADVISOR in self.options.variants and ADVISOR not in failed:
            names += self._stacks()
        if EXPERT in self.options.variants:
            names += [experts.STACK] if self.options.exports else experts.experts_of(self.workload)
        if PYTHON_FILE in names and (why := self._no_python_file()):
            names.remove(PYTHON_FILE)
            failed[PYTHON_FILE] = {"failed": why}
        return names

    def _no_python_file(self) -> str:
        """Why there is no exported Python file to time; empty where there is one."""
        search = self.result["searches"].get(ADVISOR)
        return search.get("no_python_file", "") if search else "there was no session"

    def _stacks(self) -> list[str]:
        """Name perf-advisor's distinct stacks, write them as files, and note which one was known at which moment."""
        search = self.result["searches"][ADVISOR]
        stacks: list[tuple[str, Settings]] = [(ADVISOR, search["settings"])]
        search["variants"] = {}
        for moment, settings in search["known"].items():
            if settings is None:
                continue
            same = [name for name, other in stacks if other == settings]
            name = (same or [f"{ADVISOR} at {moment} s" if settings else BASELINE])[0]
            if not same and settings:
                stacks.append((name, settings))
            search["variants"][moment] = name
        for name, settings in stacks:
            self.settings[name] = self.file.with_suffix(f".{name.replace(' ', '-')}.yaml").resolve()
            self.settings[name].write_text(yaml.safe_dump(settings), encoding="utf-8")
        if (exported := self.file.with_suffix(".yaml").resolve()).exists():
            self.settings[ADVISOR] = exported
        return [name for name, _ in stacks]

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
        self._write()

    def _time_other(self, name: str) -> dict[str, Any]:
        file = self.file.with_suffix(".py").resolve() if name == PYTHON_FILE else self.settings.get(name)
        return self._apart(name, time_variant, self.workload, name, file, self.options)

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

    def _apart(self, name: str, function: Any, *arguments: Any) -> Any:
        settings = self.settings.get(ADVISOR if name == PYTHON_FILE else name)
        needed = load_catalog().environment(_read(settings)) if settings else {}
        return run_apart(
            function,
            *arguments,
            environment={**self._environment(), **needed},
            fresh=bool(needed),
            log=self.file.with_suffix(f".{name.replace(' ', '-')}.log").resolve(),
            limit_s=self.options.limit_s,
        )

    def _environment(self) -> dict[str, str]:
        """The compilers' caches; the expert's stack is timed after the session, and with its caches."""
        caches = self.caches.resolve()
        return {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "TRITON_CACHE_DIR": str(caches / "triton")}

    def _write(self) -> None:
        self.file.write_text(json.dumps(self.result, indent=1), encoding="utf-8")


# --- run in processes of their own ----------------------------------------------------------------------------


def time_variant(workload: Workload, name: str, file: Path | None, options: Options) -> dict[str, Any]:
    """Time the baseline, or what perf-advisor exported to a file."""
    written = script.load(workload, _device())
    if name == BASELINE:
        step, data = variants.baseline(written)
    else:
        assert file is not None
        step, data = (variants.python_file if name == PYTHON_FILE else variants.tuned)(written, file)
    return _timed(step, data, options)


def time_expert(workload: Workload, name: str, choices: Any, options: Options) -> dict[str, Any]:
    """Time the expert's stack with these choices."""
    step, data = experts.write(workload, name, script.load(workload, _device()), choices)
    return _timed(step, data, options)


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
    found = [f"{name} {version_of(name)}" for name in packages if version_of(name)]
    return f"Python {platform.python_version()}, {', '.join(found)}, perf-advisor {advisor.__version__}"


def version_of(package: str) -> str | None:
    """The installed version of a package, None without it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(settings: Path) -> Settings:
    return yaml.safe_load(settings.read_text(encoding="utf-8")) or {}


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
