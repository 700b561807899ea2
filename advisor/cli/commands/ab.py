"""``perf-advisor ab``: two commands that train, or one at two git revisions, timed in turn."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.cli.parser import Parser
from advisor.errors import ExitCode, UsageError
from advisor.figures.formatting import format_bytes, format_ms, format_seconds
from advisor.figures.options import seconds_of

if TYPE_CHECKING:
    from advisor.runner.commands import Command, Compared, Side

_BUDGET_S = 120.0
_LOSSES = {
    "": "none was seen",
    "same": "the same in both",
    "close": "close: within 2 %",
    "different": "different",
    "varying": "differ as much between two runs of one command: set a seed to compare them",
}


def _measure(
    commands: Sequence[str], revisions: Sequence[str], min_speedup: float, budget_s: float, *, as_json: bool
) -> int:
    from advisor.files.scratch import scratch_folder
    from advisor.runner.commands import compare

    folder = Path(tempfile.mkdtemp(prefix="ab-", dir=scratch_folder()))
    with _sides(commands, revisions, folder) as (a, b):
        found = compare(a, b, budget_s, folder, lambda text: print(text, file=sys.stderr, flush=True))
    if as_json:
        from advisor.export.json_report import strict_json

        print(strict_json(_as_json(found, min_speedup), indent=2))
    else:
        print(_as_text(found))
    return ExitCode.OK if found.comparison.ci_high >= min_speedup else ExitCode.NOT_WORTH_IT


@contextlib.contextmanager
def _sides(commands: Sequence[str], revisions: Sequence[str], folder: Path) -> Iterator[tuple[Command, Command]]:
    """The two commands; those of git revisions run in checkouts of their own, which are removed at the end."""
    from advisor.runner.commands import Command

    here = Path.cwd()
    if not revisions:
        first, second = commands
        yield Command("A", first, str(here)), Command("B", second, str(here))
        return
    top = Path(_git("rev-parse", "--show-toplevel"))
    checkouts: list[Path] = []
    try:
        for side, revision in zip("AB", revisions, strict=True):
            _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", named=revision)
            checkout = folder / f"revision-{side}"
            _git("worktree", "add", "--detach", str(checkout), revision, named=revision)
            checkouts.append(checkout)
        a, b = (str(checkout / here.relative_to(top)) for checkout in checkouts)
        yield Command("A", commands[0], a), Command("B", commands[0], b)
    finally:
        for checkout in checkouts:
            _git("worktree", "remove", "--force", str(checkout))


def _git(*arguments: str, named: str = "") -> str:
    """What git prints. Raises UsageError where it fails; ``named`` is the revision in question."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607 - the user's own
    except FileNotFoundError:
        raise UsageError("--rev needs git, which is not installed.", "Name two commands instead.") from None
    if done.returncode:
        wrong = f"git knows no revision {named!r} here." if named else f"git says: {done.stderr.strip()}"
        raise UsageError(wrong, "Run it inside the repository, and name branches, tags or commits of it.")
    return done.stdout.strip()


def _as_text(found: Compared) -> str:
    """The result as a table."""
    a, b, comparison = found.a, found.b, found.comparison
    rows = [
        ("", "A", "B"),
        ("step", format_ms(a.step_ms), format_ms(b.step_ms)),
        ("peak memory", format_bytes(a.peak_bytes), format_bytes(b.peak_bytes)),
        ("first step after", format_seconds(a.startup_s), format_seconds(b.startup_s)),
        ("runs", str(len(a.runs)), str(len(b.runs))),
    ]
    width = max(len(row[1]) for row in rows) + 2
    interval = f"{comparison.speedup:.2f}x ({comparison.ci_low:.2f}-{comparison.ci_high:.2f})"
    return "\n".join(
        [
            f"A  {a.command}",
            f"B  {b.command}",
            *(f"{name:18}{one:{width}}{other}".rstrip() for name, one, other in rows),
            f"{'first losses':18}{_LOSSES[found.losses]}",
            f"B over A: {interval}, {comparison.verdict.value}",
        ]
    )


def _as_json(found: Compared, min_speedup: float) -> dict[str, Any]:
    comparison = found.comparison
    return {
        "a": _side_as_json(found.a),
        "b": _side_as_json(found.b),
        "speedup": comparison.speedup,
        "ci_low": comparison.ci_low,
        "ci_high": comparison.ci_high,
        "verdict": comparison.verdict.value,
        "losses": found.losses,
        "min_speedup": min_speedup,
        "session_s": found.seconds,
    }


def _side_as_json(side: Side) -> dict[str, Any]:
    return {
        "command": side.command,
        "step_ms": side.step_ms,
        "peak_bytes": side.peak_bytes,
        "startup_s": side.startup_s,
        "first_losses": list(side.runs[0].losses),
        "runs": len(side.runs),
    }


def run(arguments: Sequence[str]) -> int:
    """Time two commands in turn; the exit code says whether B is as fast as asked for. Raises AdvisorError."""
    parser = Parser(
        "perf-advisor ab",
        "Time two commands that train with PyTorch in turn, A B B A, each until it has made enough optimizer steps.\n"
        "They run as you type them, with all that they write; each is ended then. The exit code is 4 when the whole\n"
        "95 % interval of B over A lies below --min-speedup. Compare steps of the same batch size.",
        usage='perf-advisor ab "COMMAND A" "COMMAND B" [options]\n       perf-advisor ab "COMMAND" --rev A B [options]',
    )
    parser.add_argument("commands", nargs="+", metavar="COMMAND", help='as in "python train.py --epochs 1"')
    parser.add_argument(
        "--rev",
        nargs=2,
        metavar=("A", "B"),
        default=[],
        help="one command at two git revisions; files that git does not hold are not there",
    )
    parser.add("--min-speedup")
    parser.add("--budget", type=seconds_of, default=_BUDGET_S, help="90s, 2m (the default)")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    options = parser.parse(arguments)
    wanted = 1 if options.rev else 2
    if len(options.commands) != wanted:
        what = "one command, to be run at two revisions" if options.rev else "two commands"
        raise UsageError(
            f"ab compares {what}, and {len(options.commands)} came.",
            'Put each in quotes: `perf-advisor ab "python train.py" "python train_fast.py"`.',
        )
    return _measure(options.commands, options.rev, options.min_speedup, options.budget, as_json=options.json)
