"""``perf-advisor check``: whether exported settings are still worth it, for a continuous integration."""

import time
from dataclasses import asdict

from advisor.cli.parser import Parser, say, target_of_exported
from advisor.errors import ExitCode
from advisor.experiment.request import Request
from advisor.figures.formatting import format_ms


def run(arguments: list[str]) -> int:
    """Measure exported settings again.

    The exit code is 4 when the whole 95 % interval of their speed-up lies below --min-speedup.
    """
    parser = Parser("check", run.__doc__, "SETTINGS TARGET")
    parser.add_exported("measure another target's settings, too")
    parser.add("--min-speedup")
    parser.add_limit()
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    options = parser.parse(arguments)
    request, needed = Request(target_of_exported(options), options.budget_s), options.min_speedup
    from advisor.experiment.measuring.verification import check
    from advisor.recipe.catalog import load_catalog
    from advisor.report.figures import before_and_after
    from advisor.runner.trials import Runner

    started = time.monotonic()
    Runner.prepare()
    found = check(Runner(), request, options.settings, load_catalog(), say, started=started)
    worth = found.reaches(needed)
    if options.json:
        from advisor.export.json_report import strict_json

        print(strict_json({"min_speedup": needed, "worth_it": worth, **asdict(found)}, indent=2))
    else:
        enough = "OK" if found.speedup >= needed else "unclear (noise)"
        interval = f"{found.speedup:.2f}x ({found.ci_low:.2f}-{found.ci_high:.2f}, needed {needed:g}x)"
        # The speed-up is the quotient of the two step times beside it.
        steps = before_and_after(format_ms, found.plain_step_ms, found.plain_step_ms / found.speedup)
        print(f"{options.settings}: {enough if worth else 'no longer worth it'}: {interval}, {steps} a step")
    return ExitCode.OK if worth else ExitCode.NOT_WORTH_IT
