"""``perf-advisor ab``: two commands that train, or one at two git revisions, timed in turn."""

from collections.abc import Sequence

from advisor.cli.parser import Parser, say
from advisor.errors import ExitCode


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
    about = "one command at two git revisions; files that git does not hold are not there"
    parser.add_argument("--rev", nargs=2, metavar=("A", "B"), default=[], help=about)
    parser.add("--min-speedup")
    parser.add_limit()
    parser.add_json()
    options = parser.parse(arguments)
    from advisor.export.json_report import strict_json
    from advisor.proof.commands import compare
    from advisor.proof.revisions import sides_of
    from advisor.proof.shown import as_json, as_text

    with sides_of(options.commands, options.rev) as (a, b, folder):
        found = compare(a, b, options.budget_s, folder, say)
    print(strict_json(as_json(found, options.min_speedup), indent=2) if options.json else as_text(found))
    return ExitCode.OK if found.reaches(options.min_speedup) else ExitCode.NOT_WORTH_IT
