"""``perf-advisor help``: the options by topic, as ``--help`` groups them, with examples."""

import argparse
from collections.abc import Sequence

from advisor.cli.options import TOPICS
from advisor.cli.parser import Parser
from advisor.errors import ExitCode


def run(arguments: Sequence[str]) -> int:
    """Show a topic with its options and examples, or the list of topics where none is named. Raises UsageError."""
    parser = Parser("perf-advisor help", "Show the options by topic.")
    parser.add_argument("topic", nargs="?", metavar="TOPIC", choices=TOPICS, help=", ".join(TOPICS))
    topic = parser.parse(arguments).topic
    if topic is None:
        for name, about in TOPICS.items():
            print(f"  perf-advisor help {name:<8} {about.title}")
        print("\n`perf-advisor --help` lists all options, `perf-advisor COMMAND --help` those of a command.")
        return ExitCode.OK
    examples = "".join(f"\n  {example}" for example in TOPICS[topic].examples)
    shown = Parser("perf-advisor", "", usage=argparse.SUPPRESS, add_help=False, epilog=f"examples:{examples}")
    shown.add_topic(topic)
    shown.print_help()
    return ExitCode.OK
