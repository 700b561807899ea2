"""``perf-advisor help``: the options by topic, each topic on a page of its own."""

import argparse
import difflib
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from advisor.cli.parser import Parser
from advisor.errors import ExitCode, UsageError


@dataclass(frozen=True, slots=True)
class Topic:
    """A page of help: its heading, its text, examples, and the options that belong to it, with blanks between."""

    title: str
    words: str
    options: str
    examples: tuple[str, ...]


TOPICS = {
    "targets": Topic(
        "What is measured",
        "A target is a training script as it is, a function build() that returns a model and its data, or a model by "
        "its name. What follows -- are the target's own arguments.",
        "--config --mode --device --gpus --side-by-side --nnodes --rdzv-endpoint --rdzv-backend --batch-size --input "
        "--script",
        ("perf-advisor train.py -- --epochs 1", "perf-advisor mymodel:build", "perf-advisor timm:resnet50"),
    ),
    "goals": Topic(
        "What counts as better",
        "Without an option that is more samples per second. What changes the results of a training needs consent.",
        "--objective --keep-speed --memory-limit --latency-limit --allow --accept --only --skip --recipes",
        ("perf-advisor mymodel:build --objective memory --keep-speed 80%",),
    ),
    "time": Topic(
        "How long it takes",
        "The budget is wall time for the whole session. What was measured is kept; a session can be taken up again.",
        "--budget --resume --anew",
        ("perf-advisor mymodel:build --budget 90s", "perf-advisor mymodel:build --resume"),
    ),
    "files": Topic(
        "What is written",
        "The settings, your own script or config changed, plain PyTorch, and reports for people and programs.",
        "--export --force --diff --map --config-kind --no-verify --report --json --events --trace",
        ("perf-advisor train.py --diff --export train.tuned.py --report report.html",),
    ),
    "ci": Topic(
        "In continuous integration and from programs",
        "Without a terminal there is no app. The exit code is 0 when done, 2 for a mistake on the command line, 3 when "
        "the target cannot be measured, 4 when `check` finds settings no longer worth it, 130 when interrupted.",
        "--headless --json --events",
        ("perf-advisor check tuned.yaml mymodel:build --min-speedup 0.95", "perf-advisor demo --json - --events"),
    ),
}


def show(topic: str) -> int:
    """Show a topic, or the list of them where none is named."""
    print(page(topic) if topic else listing(), end="")
    return ExitCode.OK


def listing() -> str:
    """The topics, a line each."""
    lines = (f"  perf-advisor help {name:<9} {topic.title}\n" for name, topic in TOPICS.items())
    all_options = "`perf-advisor --help` lists all options, `perf-advisor COMMAND --help` those of a command."
    return f"{''.join(lines)}\n{all_options}\n"


def page(name: str) -> str:
    """A topic: its words, its options with their help, and examples."""
    from advisor.cli.commands.measure import measure_parser

    topic, parser = TOPICS[name], measure_parser("")
    shown = argparse.RawDescriptionHelpFormatter(parser.prog)
    shown.start_section("options")
    shown.add_arguments(action for action in parser._actions if set(action.option_strings) & set(topic.options.split()))
    shown.end_section()
    examples = "".join(f"  {example}\n" for example in topic.examples)
    return f"{topic.title}\n\n{textwrap.fill(topic.words, 80)}\n\n{shown.format_help()}\nexamples:\n{examples}"


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
