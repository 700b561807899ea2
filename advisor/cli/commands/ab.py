"""``perf-advisor ab``: two commands that train, timed in turn."""

import tempfile
from pathlib import Path

from advisor.cli.parser import Parser, say
from advisor.errors import ExitCode, UsageError


def run(arguments: list[str]) -> int:
    """Time two commands that train with PyTorch in turn, A B B A, each until it has made enough optimizer steps.

    They run as you type them, with all that they write; each is ended then. The exit code is 4 when the whole 95 %
    interval of B over A lies below --min-speedup. Compare steps of the same batch size.
    """
    parser = Parser("ab", run.__doc__, usage='perf-advisor ab "COMMAND A" "COMMAND B" [options]')
    parser.add_argument("commands", nargs="+", metavar="COMMAND", help='as in "python train.py --epochs 1"')
    parser.add("--min-speedup")
    parser.add_limit()
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    options = parser.parse(arguments)
    if len(options.commands) != 2:
        raise UsageError(
            f"ab compares two commands, and {len(options.commands)} came.",
            'Put each in quotes: `perf-advisor ab "python train.py" "python train_fast.py"`.',
        )
    from advisor.export.json_report import strict_json
    from advisor.files.folders import scratch_folder
    from advisor.proof.commands import as_json, as_text, compare

    a, b = options.commands
    folder = Path(tempfile.mkdtemp(prefix="ab-", dir=scratch_folder()))
    found = compare(a, b, options.budget_s, folder, say)
    print(strict_json(as_json(found, options.min_speedup), indent=2) if options.json else as_text(found))
    return ExitCode.OK if found.reaches(options.min_speedup) else ExitCode.NOT_WORTH_IT
