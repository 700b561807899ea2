"""The grammar of the command line. A new command is a function in ``commands/`` and a line here.

Nothing here imports torch, rich or textual, and the catalogue of recipes is read only to check the ids in the options.
A command's file is loaded only when the command is used, so that the app is on screen sooner.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from advisor.cli.commands import measure

# By command: the module in ``commands/`` with its function ``run_COMMAND``; how to type it; its description.
COMMANDS = {
    "recipes": ("known", "recipes [ID]", "the speed-ups it knows"),
    "hardware": ("known", "hardware", "this machine"),
    "completion": ("known", "completion", "a script with which bash completes all this"),
    "sessions": ("recorded", "sessions", "earlier sessions"),
    "open": ("recorded", "open [SESSION]", "one of them in the app"),
    "compare": ("recorded", "compare A B", "what changed between two of them"),
    "report": ("recorded", "report [SESSION]", "show or write the report of one"),
    "export": ("recorded", "export [SESSION]", "write the settings that one found"),
    "init": ("init", "init train.py", "write a build() to complete from what a script does"),
    "check": ("proof", "check tuned.yaml TARGET", "measure exported settings again; 4 if not worth it"),
    "converge": ("proof", "converge tuned.yaml TARGET", "whether a training with them learns as well; 4 if not"),
    "ab": ("proof", 'ab "CMD A" "CMD B"', "two commands that train, timed in turn"),
    "mcp": ("serving", "mcp", "serve coding agents (Model Context Protocol)"),
    "follow": ("serving", "follow --nnodes 2 ...", "this machine's GPUs for a session on another"),
}

FIRST = """\
perf-advisor measures which PyTorch speed-ups help your model on your machine,
and writes the settings that won.

  perf-advisor demo                    a built-in model, for 90 seconds
  perf-advisor train.py -- ARGS        your training script, which is not changed
  perf-advisor mymodel:build           what build() in mymodel.py returns"""
_LISTED = "\n".join(f"  perf-advisor {typed:23} {about}" for _, typed, about in COMMANDS.values())
ABOUT = f"""\
{FIRST}
  perf-advisor timm:resnet50           a model by name: timm:, hf:, torchvision:, ultralytics:

{_LISTED}"""


def parse(arguments: Sequence[str]) -> Callable[[], int | None]:
    """Return the command of a command line. To call it returns the exit code (None for 0) or raises AdvisorError.

    A session's options are read here, the options of another command when it is called. Raises UsageError for a
    mistake; ``--help`` and ``--version`` exit.
    """
    if not arguments:
        return partial(print, f"{FIRST}\n\n`perf-advisor --help` lists all commands and options.")
    first, *rest = arguments
    if first == "help":
        first, arguments = "--help", ["--help"]
    if first not in COMMANDS:
        return measure.parse(arguments, COMMANDS, ABOUT)
    module = import_module(f"advisor.cli.commands.{COMMANDS[first][0]}")
    return partial(getattr(module, f"run_{first}"), rest)
