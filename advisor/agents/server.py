"""A Model Context Protocol server over standard input and output, for coding agents.

Each tool runs a perf-advisor command in its own process, so an agent sees the same as a person. Long commands return
at once as jobs. Only the session's journal is written, and files whose paths the client gives.
"""

import contextlib
import functools
import itertools
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from advisor.errors import ExitCode, UsageError
from advisor.files.folders import scratch_folder
from advisor.version import __version__

_INSTRUCTIONS = """\
perf-advisor measures which PyTorch speed-ups help a model on this machine. Usual order: inspect or measure a target
(train.py or mymodel.py:build, for example), call progress until the job is done, read the result, show the diff, export
to a new file, and check it with ab. Each speed-up has a 95 or 99 % interval: trust intervals, not single ratios.
"""
_INSPECT_BUDGET = "40s"
_MOST_ENTRIES, _MOST_LINES = 12, 6
_LONGEST_WAIT_S, _ENDING_S = 60.0, 10.0
# Options that measure() refuses: other tools write files, and the app cannot be opened here.
_NOT_HERE = ("--export", "--report", "--trace", "--json", "--force", "--resume", "--recipes")
# The report's fields that are returned unchanged, and the fields of each recommendation.
_WHOLE = "session target bottleneck bottleneck_evidence stack verification session_s cancelled error"
_OF_RECOMMENDATION = "recipe settings speedup ci_low ci_high verdict why needs_consent"


class Job:
    """A perf-advisor command in its own process, with its progress lines, and its output after it has ended."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.output, self._progress = (scratch_folder() / f"{name}.{kind}" for kind in ("json", "log"))
        command = [sys.executable, "-m", "advisor", *arguments]
        with self.output.open("wb") as output, self._progress.open("wb") as progress:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=progress)  # noqa: S603 - our own

    def wait(self, seconds: float) -> bool:
        """Wait up to so many seconds for the end of the command. Return whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    @property
    def lines(self) -> list[str]:
        """The latest progress lines."""
        return self._progress.read_text(encoding="utf-8", errors="replace").splitlines()[-_MOST_LINES:]

    @property
    def status(self) -> dict[str, Any]:
        """The state of the job: running, done or failed, with its latest lines."""
        code = self._process.poll()
        state = "running" if code is None else "done" if code in (ExitCode.OK, ExitCode.NOT_WORTH_IT) else "failed"
        return {"job": self.name, "state": state, "exit_code": code, "lines": self.lines}

    def interrupt(self) -> None:
        """Ask the command to end, like Ctrl-C. Its measurements are kept."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Wait for the end of the command after :meth:`interrupt`; after a time limit, kill it."""
        if not self.wait(_ENDING_S):
            self._process.kill()
            self._process.wait()


class Tools:
    """The tools. Each is a method, and the client shows its docstring."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._numbers = itertools.count(1)  # safe in threads, where the tools run

    def inspect(self, target: str, arguments: list[str] | None = None) -> dict[str, Any]:
        """Find the step's bottleneck, and slow habits in the source, in a session of 40 s. Returns a job.

        target: a training script (train.py), path/file.py:build, module:build, or timm:NAME, hf:NAME, torchvision:NAME.
        arguments: the arguments of the script.
        """
        return self.measure(target, _INSPECT_BUDGET, [], arguments)

    def measure(
        self, target: str, budget: str = "2m", options: list[str] | None = None, arguments: list[str] | None = None
    ) -> dict[str, Any]:
        """Search for the settings that make a target faster. Returns a job at once; call progress, then result.

        options: command-line options, e.g. ["--mode", "infer", "--objective", "memory", "--accept", "batch_size"].
        """
        options = options or []
        if refused := [option for option in options if option.partition("=")[0] in _NOT_HERE]:
            raise UsageError(f"{refused[0]} is not for this tool.", "Use the tools export and diff for files.")
        own = ["--", *arguments] if arguments else []
        return self._start([target, "--headless", "--json", "-", "--budget", budget, *options, *own])

    def ab(self, command_a: str, command_b: str, budget: str = "2m") -> dict[str, Any]:
        """Run two training commands in turn, and compare their step times and first losses. Returns a job.

        Both are shell commands. They run until they have made enough optimizer steps, and they write their usual files.
        """
        return self._start(["ab", command_a, command_b, "--budget", budget, "--json"])

    def _start(self, arguments: Sequence[str]) -> dict[str, Any]:
        job = Job(f"job{next(self._numbers)}", arguments)
        self.jobs[job.name] = job
        job.wait(1.0)  # long enough to report a mistake in the arguments
        return job.status

    def progress(self, job: str, wait_s: float = 20.0) -> dict[str, Any]:
        """Wait up to wait_s seconds for a job. Returns its state (running, done, failed) and its latest lines."""
        found = self._job(job)
        found.wait(min(wait_s, _LONGEST_WAIT_S))
        return found.status

    def cancel(self, job: str) -> dict[str, Any]:
        """End a job. Its measurements are kept, and result still returns them."""
        found = self._job(job)
        found.interrupt()
        found.end()
        return found.status

    def result(self, job: str) -> dict[str, Any]:
        """Return the result of a job: fields of the JSON report, and ``session``, the id for diff and export."""
        found = self._job(job)
        if not found.wait(0):
            return found.status
        try:
            report = dict(json.loads(found.output.read_bytes()))
        except ValueError:
            raise UsageError("the job has no result.", " ".join(found.lines)) from None
        return _shortened(report) if "stack" in report else report

    def explain(self, recipe: str) -> str:
        """Return the description of a recipe: its effect, limits and numerics. Without a name: the list of recipes."""
        return _run("recipes", *([recipe] if recipe else []))

    def diff(self, session: str) -> str:
        """Return the change of the user's own script as a unified diff. Nothing is written."""
        with tempfile.TemporaryDirectory() as folder:
            return _run("export", session, "--export", str(Path(folder) / "tuned.py"), "--diff")

    def export(self, session: str, path: str) -> str:
        """Write what a session found to a new file inside the working directory.

        path: .yaml for settings, .py for the user's own script with the settings in it.
        """
        if not (Path.cwd() / path).resolve().is_relative_to(Path.cwd().resolve()):
            raise UsageError(f"{path} is outside the server's working directory.", "Name a file inside it.")
        return _run("export", session, "--export", path) or f"wrote {path}"

    def _job(self, name: str) -> Job:
        if name not in self.jobs:
            raise UsageError(f"there is no job {name!r}.", f"Jobs: {', '.join(self.jobs) or 'none yet'}.")
        return self.jobs[name]


def _shortened(report: dict[str, Any]) -> dict[str, Any]:
    """The fields of a report that an agent needs, to save its context."""
    tried = [one for one in report["trials"] if one["verdict"] in ("same", "slower", "unclear", "failed")]
    recommended = report["recommendations"][:_MOST_ENTRIES]
    return {
        **{key: report.get(key) for key in _WHOLE.split()},
        "baseline": {key: value for key, value in (report["baseline"] or {}).items() if value is not None},
        "recommendations": [{key: one[key] for key in _OF_RECOMMENDATION.split() if key in one} for one in recommended],
        "others": {one["recipe"]: one["reason"] or one["verdict"] for one in tried},
        "habits": report["habits"][:_MOST_ENTRIES],
        "findings": report["findings"][:_MOST_ENTRIES],
    }


def _run(*arguments: str) -> str:
    """Run a short command and return its output. Raises UsageError with the command's error lines."""
    command = [sys.executable, "-m", "advisor", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        message, _, hint = done.stderr.strip().partition("\n")
        raise UsageError(message, hint)
    return f"{done.stdout}{done.stderr}".strip()


def serve() -> None:
    """Serve until the client leaves, then end its jobs. Raises UsageError without the package ``mcp``."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise UsageError(
            "the package mcp is not installed, or older than version 2.", "Type `pip install 'perf-advisor[mcp]'`."
        ) from None

    def answering(tool: Callable[..., Any]) -> Callable[..., Any]:
        """A tool whose errors become answers that the client reads."""

        @functools.wraps(tool)
        def answer(*args: Any, **kwargs: Any) -> Any:
            try:
                return tool(*args, **kwargs)
            except UsageError as error:
                raise ToolError(f"{error.message} {error.hint}") from None

        return answer

    tools = Tools()
    server = MCPServer("perf-advisor", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    for tool in (
        tools.inspect, tools.measure, tools.progress, tools.result, tools.cancel,
        tools.explain, tools.diff, tools.export, tools.ab,
    ):  # fmt: skip
        server.tool(structured_output=False)(answering(tool))
    try:
        server.run("stdio")
    finally:
        for job in tools.jobs.values():
            job.interrupt()
        for job in tools.jobs.values():
            job.end()
