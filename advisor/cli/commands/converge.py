"""``perf-advisor converge``: whether a training with exported settings learns as well as without them."""

from advisor.cli.parser import Parser, say, target_of_exported
from advisor.errors import ExitCode, UsageError
from advisor.records import Mode


def run(arguments: list[str]) -> int:
    """Train with exported settings and without them, from the same seeds, and compare the loss curves.

    The exit code is 4 when the settings learn worse, or diverge.
    """
    parser = Parser("converge", run.__doc__, "SETTINGS TARGET")
    parser.add_exported("train with another target's settings, too")
    parser.add("--steps", dest="steps", default=500)
    parser.add("--seeds")
    parser.add_argument("--json", action="store_true", help="the curves as JSON")
    options = parser.parse(arguments)
    target = target_of_exported(options)
    if target.mode is Mode.INFER:
        raise UsageError("only a training has a loss curve.", "Leave --mode infer out.")
    from advisor.export.json_report import strict_json
    from advisor.proof.convergence import as_json, as_text, converge

    found = converge(target, options.settings, say, options.steps, options.seeds)
    print(strict_json(as_json(found), indent=2) if options.json else as_text(options.settings, found, options.steps))
    return ExitCode.OK if found.verdict.is_fine else ExitCode.NOT_WORTH_IT
