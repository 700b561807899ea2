"""The command line's grammar: which command it names. A new command is a file in ``commands/`` and a line here.

Nothing here imports torch, rich or textual, and the catalogue of recipes is read only to check the ids in the options.
A command's file is loaded when the command is used, so that the app is on screen sooner.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from advisor.cli.commands import measure

# The commands, each with its module in ``commands/`` and the function there that runs it: ``run`` where none is named.
COMMANDS = {
    "recipes": "recipes",
    "hardware": "hardware",
    "sessions": "recorded:run_sessions",
    "open": "recorded:run_open",
    "compare": "recorded:run_compare",
    "report": "recorded:run_report",
    "export": "recorded:run_export",
    "init": "init",
    "check": "check",
    "ab": "ab",
    "converge": "converge",
    "mcp": "mcp",
    "follow": "follow",
    "completion": "completion",
}

FIRST = """\
perf-advisor measures which PyTorch speed-ups help your model on your machine,
and writes the settings that won.

  perf-advisor demo                    a built-in model, for 90 seconds
  perf-advisor train.py -- ARGS        your training script, which is not changed
  perf-advisor mymodel:build           what build() in mymodel.py returns"""
ABOUT = f"""\
{FIRST}
  perf-advisor timm:resnet50           a model by name: timm:, hf:, torchvision:, ultralytics:

  perf-advisor recipes [ID]            the speed-ups it knows
  perf-advisor hardware                this machine
  perf-advisor sessions                earlier sessions
  perf-advisor open [SESSION]          one of them in the app; from there, measure more
  perf-advisor compare A B             what changed between two of them
  perf-advisor report [SESSION]        show or write the report of one
  perf-advisor export [SESSION]        write the settings that one found
  perf-advisor init train.py           write a build() to complete from what a script does
  perf-advisor check tuned.yaml TARGET measure exported settings again; 4 if not worth it
  perf-advisor converge tuned.yaml TARGET  whether a training with them learns as well; 4 if not
  perf-advisor ab "CMD A" "CMD B"      two commands that train, timed in turn
  perf-advisor mcp                     serve coding agents (Model Context Protocol)
  perf-advisor follow --nnodes 2 ...   this machine's GPUs for a session on another
  perf-advisor completion bash         a script for your shell: bash, zsh or fish"""


def show_first_steps() -> int:
    """Print the three commands to begin with, for ``perf-advisor`` with nothing after it."""
    print(f"{FIRST}\n\n`perf-advisor --help` lists all commands and options.")
    return 0


def parse(arguments: Sequence[str]) -> Callable[[], int]:
    """The command of a command line: called, it runs and returns the exit code, or raises AdvisorError.

    A session's options are read here, those of other commands when it is called. Raises UsageError for a mistake;
    ``--help`` and ``--version`` exit.
    """
    if not arguments:
        return show_first_steps
    first, *rest = arguments
    if first == "help":
        first, arguments = "--help", ["--help"]
    if first not in COMMANDS:
        return measure.parse(arguments, COMMANDS, ABOUT)
    module, _, name = COMMANDS[first].partition(":")
    return partial(getattr(import_module(f"advisor.cli.commands.{module}"), name or "run"), rest)
