"""The commands ``check``, ``converge`` and ``ab``, whose exit code says whether settings are worth it."""

import tempfile
import time
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from advisor.cli.options import INPUTS
from advisor.cli.parser import Parser, say, target_of
from advisor.errors import ExitCode, UsageError
from advisor.experiment.request import Request
from advisor.export.files import check_target_of
from advisor.figures.formatting import format_ms
from advisor.files.paths import check_target
from advisor.records import Mode, TargetSpec


def run_check(arguments: list[str]) -> int:
    """Measure exported settings again.

    The exit code is 4 when the whole 95 % interval of their speed-up lies below --min-speedup.
    """
    parser = Parser("check", run_check.__doc__, "SETTINGS TARGET")
    parser.add("settings", "target", *INPUTS, "--config", "--min-speedup")
    parser.add("--force", help="measure another target's settings, too")
    parser.add_limit()
    options = _parsed(parser, arguments)
    request, needed = Request(_target(options), options.budget_s), options.min_speedup
    from advisor.experiment.measuring.verification import check
    from advisor.recipe.catalog import load_catalog
    from advisor.report.figures import before_and_after
    from advisor.runner.trials import Runner

    started = time.monotonic()
    Runner.prepare()
    found = check(Runner(), request, options.settings, load_catalog(), say, started=started)
    worth = found.ci_high >= needed  # not worth it only if the whole interval is below the needed speed-up
    enough = "no longer worth it" if not worth else "OK" if found.speedup >= needed else "unclear (noise)"
    interval = f"{found.speedup:.2f}x ({found.ci_low:.2f}-{found.ci_high:.2f}, needed {needed:g}x)"
    # The speed-up is exactly the ratio of the two step times that are shown.
    steps = before_and_after(format_ms, found.plain_step_ms, found.plain_step_ms / found.speedup)
    told = f"{options.settings}: {enough}: {interval}, {steps} a step"
    return _answered(options, told, {"min_speedup": needed, "worth_it": worth, **asdict(found)}, worth=worth)


def run_converge(arguments: list[str]) -> int:
    """Train with exported settings and without them, from the same seeds, and compare the loss curves.

    The exit code is 4 when the settings learn worse, or diverge.
    """
    parser = Parser("converge", run_converge.__doc__, "SETTINGS TARGET")
    parser.add("settings", "target", *INPUTS, "--config", "--seeds")
    parser.add("--force", help="train with another target's settings, too")
    parser.add("--steps", dest="steps", default=500)
    options = _parsed(parser, arguments)
    target = _target(options)
    if target.mode is Mode.INFER:
        raise UsageError("only a training has a loss curve.", "Leave --mode infer out.")
    from advisor.proof.convergence import as_json, as_text, converge

    found = converge(target, options.settings, say, options.steps, options.seeds)
    told = as_text(options.settings, found, options.steps)
    return _answered(options, told, as_json(found), worth=found.verdict.is_fine)


def run_ab(arguments: list[str]) -> int:
    """Time two commands that train with PyTorch in turn, A B B A, each until it has made enough optimizer steps.

    They run as you type them, with all that they write; each is ended then. The exit code is 4 when the whole 95 %
    interval of B over A lies below --min-speedup. Compare steps of the same batch size.
    """
    parser = Parser("ab", run_ab.__doc__, usage='perf-advisor ab "COMMAND A" "COMMAND B" [options]')
    parser.add_argument("commands", nargs="+", metavar="COMMAND", help='as in "python train.py --epochs 1"')
    parser.add("--min-speedup")
    parser.add_limit()
    options = _parsed(parser, arguments)
    if len(options.commands) != 2:
        raise UsageError(
            f"ab compares two commands, and {len(options.commands)} came.",
            'Put each in quotes: `perf-advisor ab "python train.py" "python train_fast.py"`.',
        )
    from advisor.files.folders import scratch_folder
    from advisor.proof.commands import as_json, as_text, compare

    a, b = options.commands
    folder = Path(tempfile.mkdtemp(prefix="ab-", dir=scratch_folder()))
    found = compare(a, b, options.budget_s, folder, say)
    least = options.min_speedup
    return _answered(options, as_text(found), as_json(found, least), worth=found.reaches(least))


def _parsed(parser: Parser, arguments: list[str]) -> Namespace:
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    return parser.parse(arguments)


def _target(options: Namespace) -> TargetSpec:
    """The target to measure exported settings on. Raises UsageError if the file has none, or another target's."""
    from advisor.recipe.settings import Settings

    if not Settings.from_file(options.settings):
        raise UsageError(f"{options.settings} has no settings.", "Name a file that --export wrote with some in it.")
    target = target_of(options.target, options)
    if not options.force:
        check_target_of(options.settings, target, "Name that target, or add --force to use them on this one.")
    check_target(target.target, target.directory)
    return target


def _answered(options: Namespace, text: str, result: dict[str, Any], *, worth: bool) -> ExitCode:
    """Print the result as text or JSON, as was asked for, and return the exit code."""
    from advisor.export.json_report import strict_json

    print(strict_json(result, indent=2) if options.json else text)
    return ExitCode.OK if worth else ExitCode.NOT_WORTH_IT
