"""``perf-advisor check``: whether exported settings are still worth it, for a continuous integration."""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from advisor.cli.options import INPUTS
from advisor.cli.parser import Parser, split_arguments, target_of
from advisor.errors import ExitCode, UsageError
from advisor.export.files import check_target_of
from advisor.figures.formatting import format_ms
from advisor.figures.options import seconds_of
from advisor.files.paths import check_target
from advisor.records import TargetSpec

_BUDGET_S = 120.0


def run(arguments: Sequence[str]) -> int:
    """Measure a target with a settings file and without it; the exit code says whether the settings are worth it.

    Raises UsageError before anything is measured, also for a file that cannot be read or that changes nothing.
    """
    own, targets = split_arguments(arguments)
    parser = Parser(
        "perf-advisor check",
        "Measure exported settings again. The exit code is 4 when the whole 95 % interval of their speed-up\n"
        "lies below --min-speedup.",
        usage="perf-advisor check SETTINGS TARGET [options] [-- ARGUMENTS of the target]",
    )
    parser.add_argument("settings", metavar="SETTINGS", help="the file that --export wrote, as in tuned.yaml")
    parser.add_argument("target", metavar="TARGET", help="what it is for, as in mymodel:build")
    parser.add("--min-speedup", *INPUTS, "--config")
    parser.add("--budget", type=seconds_of, default=_BUDGET_S, help="90s, 2m (the default)")
    parser.add("--force", help="measure another target's settings, too")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    options = parser.parse(own)
    from advisor.recipe.settings import Settings

    if not Settings.from_file(options.settings):
        raise UsageError(f"{options.settings} has no settings.", "Name a file that --export wrote with some in it.")
    target = target_of(options.target, targets, options)
    if not options.force:
        check_target_of(options.settings, target, "Name that target, or add --force to measure them on this one.")
    check_target(target.target, target.directory)
    return _measure(options.settings, target, options.min_speedup, options.budget, as_json=options.json)


def _measure(path: str, target: TargetSpec, min_speedup: float, budget_s: float, *, as_json: bool) -> int:
    from advisor.experiment.measuring.verification import check
    from advisor.experiment.request import Request
    from advisor.recipe.catalog import load_catalog
    from advisor.runner.trials import Runner

    started = time.monotonic()
    Runner.prepare()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found = check(Runner(), Request(target, budget_s), path, load_catalog(), say, started=started)
    worth = found.reaches(min_speedup)
    if as_json:
        from advisor.export.json_report import strict_json

        print(strict_json({"min_speedup": min_speedup, "worth_it": worth, **asdict(found)}, indent=2))
    else:
        enough = "OK" if found.speedup >= min_speedup else "unclear (noise)"
        interval = f"{found.speedup:.2f}x ({found.ci_low:.2f}-{found.ci_high:.2f}, needed {min_speedup:g}x)"
        steps = f"{format_ms(found.plain_step_ms)} a step without, {format_ms(found.tuned_step_ms)} with"
        print(f"{path}: {enough if worth else 'no longer worth it'}: {interval}, {steps}")
    return ExitCode.OK if worth else ExitCode.NOT_WORTH_IT
