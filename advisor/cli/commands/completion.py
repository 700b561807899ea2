"""``perf-advisor completion``: a script with which a shell completes commands, options and their values."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from advisor.cli.options import CHOICES, TOPICS
from advisor.cli.parser import Parser
from advisor.errors import ExitCode
from advisor.figures.options import choice_of
from advisor.records.kinds import DEVICES, Shell

# The commands that take a session.
_OF_SESSIONS = ("open", "compare", "report", "export")


def _filled(shell: Shell, **words: str) -> str:
    """The shell's script, ``completion.<shell>``, with these words in place of each ``@name``."""
    text = Path(__file__).with_name(f"completion.{shell.value}").read_text(encoding="utf-8")
    for name, word in words.items():
        text = text.replace(f"@{name}", word)
    return text


def script_for(shell: Shell, commands: Sequence[str]) -> str:
    """The script for a shell; ``commands`` are the words that may come first."""
    from advisor.experiment.past.journal import sessions_folder
    from advisor.recipe.catalog import load_catalog

    recipes = [recipe.id for recipe in load_catalog()]
    options = [name for topic in TOPICS.values() for name in topic.options]
    choices = {name: [each.value for each in kind] for name, kind in CHOICES.items()}
    choices |= {"--device": ["auto", *DEVICES], **dict.fromkeys(("--only", "--skip", "--accept"), recipes)}
    words = shlex.quote(" ".join(["demo", *commands]))
    folder = shlex.quote(str(sessions_folder()))
    sessions = f"ls {folder} 2>/dev/null | sed -n 's/[.]jsonl//p'"  # ls answers at once; Python would take a second
    if shell is Shell.FISH:
        takers, named = " ".join(_OF_SESSIONS), shlex.quote(" ".join(recipes))
        lines = []
        for name in ("--version", "--help", *options):
            values = f" -xa {shlex.quote(' '.join(choices[name]))}" if name in choices else ""
            lines.append(f"complete -c perf-advisor -l {name.removeprefix('--')}{values}")
        listed = "\n".join(lines)
        return _filled(shell, commands=words, takers=takers, sessions=sessions, recipes=named, options=listed)
    cases = "\n".join(
        f'        {name}) COMPREPLY=($(compgen -W {shlex.quote(" ".join(values))} -- "$word")); return ;;'
        for name, values in {**choices, "recipes": recipes}.items()
    )
    takers = "|".join([*_OF_SESSIONS, "--resume"])
    listed = shlex.quote(" ".join(["--version", "--help", *options]))
    script = _filled(Shell.BASH, cases=cases, options=listed, commands=words, takers=takers, sessions=sessions)
    return script if shell is Shell.BASH else _filled(Shell.ZSH) + script.partition("\n")[2]


def run(arguments: Sequence[str]) -> int:
    """Print the script for a shell. Raises UsageError."""
    from advisor.cli.grammar import COMMANDS

    parser = Parser("perf-advisor completion", "Print a script with which a shell completes commands and options.")
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")
    print(script_for(choice_of(Shell)(parser.parse(arguments).shell), tuple(COMMANDS)), end="")
    return ExitCode.OK
