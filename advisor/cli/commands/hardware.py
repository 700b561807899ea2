"""``perf-advisor hardware``: this machine."""

import sys

from advisor.cli.parser import Parser


def run(arguments: list[str]) -> None:
    """Describe this machine: its CPU, memory and GPUs."""
    parser = Parser("hardware", run.__doc__)
    parser.add_argument("--json", action="store_true", help="as JSON, with every gauge")
    as_json = parser.parse(arguments).json
    from advisor.export.json_report import strict_json
    from advisor.machine.hardware import inspect_hardware
    from advisor.report.evidence import hardware_table
    from advisor.report.terminal import body_of, print_text

    hardware = inspect_hardware()
    if as_json:
        print(strict_json(hardware, indent=2))
    else:
        print_text(body_of([hardware_table(hardware, None)]), sys.stdout)
