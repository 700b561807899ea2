"""``perf-advisor check``: whether exported settings are still worth it, for a continuous integration."""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from advisor.cli.parser import Parser, split_arguments, target_of_exported
from advisor.errors import ExitCode
from advisor.figures.formatting import format_ms
from advisor.figures.options import seconds_of
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
    parser.add_exported("measure another target's settings, too")
    parser.add("--min-speedup")
    parser.add("--budget", type=seconds_of, default=_BUDGET_S, help="90s, 2m (the default)")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    options = parser.parse(own)
    target = target_of_exported(options, targets)
    return _measure(options.settings, target, options.min_speedup, options.budget, as_json=options.json)


def _measure(path: str, target: TargetSpec, min_speedup: float, budget_s: float, *, as_json: bool) -> int:
    from advisor.experiment.measuring.verification import check
    from advisor.experiment.request import Request
    from advisor.recipe.catalog import load_catalog
    from advisor.report.rows import before_and_after
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
        # The speed-up is the quotient of the two step times beside it.
        steps = before_and_after(format_ms(found.plain_step_ms), format_ms(found.plain_step_ms / found.speedup))
        print(f"{path}: {enough if worth else 'no longer worth it'}: {interval}, {steps} a step")
    return ExitCode.OK if worth else ExitCode.NOT_WORTH_IT
