"""``perf-advisor init``: writes a build() for the user to complete, filled in from a watched script."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shlex import quote

from advisor.cli.parser import Parser
from advisor.errors import TargetError, UsageError
from advisor.export.files import check_writable
from advisor.figures.formatting import counted
from advisor.figures.options import named
from advisor.files.paths import check_target
from advisor.process.household import without_runs

_LAST_LINES = 12


def run_init(arguments: list[str]) -> None:
    """Write a build() to complete, filled in from a script."""
    parser = Parser("init", run_init.__doc__, "SCRIPT", "script")
    parser.add_argument("script", metavar="SCRIPT", help="your training script, path/file.py; it is run up to its loop")
    parser.add("--output")
    parser.add_limit()
    options = parser.parse(arguments)
    script = Path(options.script)
    check_target(options.script, Path.cwd())
    if script.suffix != ".py" or not script.is_file():
        raise UsageError(f"there is no script {options.script}.", "Give the path of a Python file, as in train.py.")
    path = Path(options.output or script.with_name(f"build_{script.name}"))
    with named("--output"):
        check_writable(path)
    if path.exists():
        raise UsageError(f"there is a file {path} already.", "Name another one with --output.")
    text = _draft(options.script, str(path), options.arguments, options.budget_s)
    path.write_text(text, encoding="utf-8")
    todo = len([line for line in text.splitlines() if "# TODO" in line])
    then = f"then type: perf-advisor {quote(str(path))}"
    print(f"{path} written. Complete its {counted(todo, 'line')} marked TODO, {then}")


def _draft(script: str, file: str, arguments: tuple[str, ...], budget_s: float) -> str:
    """Return the file's text. Raises TargetError if the script fails, or makes no update of weights in time."""
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder, "result.json"), Path(folder, "log")
        command = [sys.executable, "-m", "advisor.workloads.scripts.draft", script, file, str(result), *arguments]
        variables = {**os.environ, **without_runs(folder)}
        try:
            with log.open("a+b") as output:  # "+" so that the process can also read its log
                ran = subprocess.run(  # noqa: S603 - the user's own script
                    command,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=budget_s,
                    check=False,
                )
        except subprocess.TimeoutExpired as error:
            raise TargetError(
                f"{script} came to no update of weights within {budget_s:.0f} s.",
                "Give it more with --budget, or let it come to its loop sooner with arguments after --.",
            ) from error
        if not result.is_file():
            said = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:])
            raise TargetError(f"{script} ended its process ({ran.returncode}).", "See its last words.", said)
        outcome = json.loads(result.read_text(encoding="utf-8"))
    if "text" not in outcome:
        raise TargetError(outcome["message"], outcome["hint"], outcome["details"])
    return str(outcome["text"])
