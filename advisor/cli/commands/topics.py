"""``perf-advisor help``: the options by topic, as the parser groups them, with examples."""

import difflib
from collections.abc import Callable, Sequence
from functools import partial

from advisor.cli.options import TOPICS
from advisor.cli.parser import Parser
from advisor.errors import ExitCode, UsageError


def show(topic: str) -> int:
    """Show a topic with its options and examples, or the list of topics where none is named."""
    from advisor.cli.commands.measure import measure_parser

    if topic:
        listed = "".join(f"  {example}\n" for example in TOPICS[topic].examples)
        print(f"{measure_parser('').topics[topic]}\nexamples:\n{listed}", end="")
        return ExitCode.OK
    for name, about in TOPICS.items():
        print(f"  perf-advisor help {name:<8} {about.title}")
    print("\n`perf-advisor --help` lists all options, `perf-advisor COMMAND --help` those of a command.")
    return ExitCode.OK


def parse(arguments: Sequence[str]) -> Callable[[], int]:
    """The command with its options, to be called. Raises UsageError."""
    parser = Parser("perf-advisor help", "Show the options by topic.")
    parser.add_argument("topic", nargs="?", default="", metavar="TOPIC", help=", ".join(TOPICS))
    topic = parser.parse(arguments).topic
    if topic and topic not in TOPICS:
        close = difflib.get_close_matches(topic, TOPICS, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(TOPICS)}."
        raise UsageError(f"there is no topic {topic!r}.", hint)
    return partial(show, topic)
