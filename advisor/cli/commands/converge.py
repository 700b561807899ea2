"""``perf-advisor converge``: whether a training with exported settings learns as well as without them."""

from collections.abc import Sequence
from pathlib import Path

from advisor.cli.parser import Parser, say, target_of_exported
from advisor.errors import ExitCode, UsageError
from advisor.export.files import check_writable, write_atomically
from advisor.figures.options import named
from advisor.records import Mode


def run(arguments: Sequence[str]) -> int:
    """Train with the settings and without them; the exit code says whether they learn as well. Raises AdvisorError."""
    parser = Parser(
        "perf-advisor converge",
        "Train with exported settings and without them, from the same seeds, and compare the loss curves. The exit\n"
        "code is 4 when the settings learn worse, or diverge.",
        "SETTINGS TARGET",
    )
    parser.add_exported("train with another target's settings, too")
    parser.add("--steps", dest="steps", default=500)
    parser.add("--seeds")
    parser.add("--report", type=str, help="a picture of the curves, .svg")
    parser.add_json("the curves as JSON")
    options = parser.parse(arguments)
    if picture := options.report_path:
        if not picture.endswith(".svg"):
            raise UsageError(f"{picture} is no picture.", "Give --report a file that ends in .svg.")
        with named("--report"):
            check_writable(Path(picture))
    target = target_of_exported(options)
    if target.mode is Mode.INFER:
        raise UsageError("only a training has a loss curve.", "Leave --mode infer out.")
    from advisor.export.json_report import strict_json
    from advisor.proof.convergence import converge
    from advisor.proof.curves import as_json, as_text, drawn

    found = converge(target, options.settings, say, options.steps, options.seeds)
    print(strict_json(as_json(found), indent=2) if options.json else as_text(options.settings, found, options.steps))
    if picture:
        write_atomically(picture, drawn(found))
    return ExitCode.OK if found.verdict.is_fine else ExitCode.NOT_WORTH_IT
