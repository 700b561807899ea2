"""``perf-advisor completion``: a script with which a shell completes commands, options and their values."""

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from advisor.cli.parser import Parser
from advisor.errors import ExitCode
from advisor.figures.options import choice_of
from advisor.records.kinds import DEVICES, ConfigKind, Mode, Numerics, Objective, Shell

_CHOICES: Mapping[str, Iterable[str]] = {
    "--objective": [each.value for each in Objective],
    "--mode": [each.value for each in Mode],
    "--allow": [each.value for each in Numerics],
    "--config-kind": [each.value for each in ConfigKind],
    "--device": ["auto", *DEVICES],
}
_BASH = """\
# perf-advisor: add `eval "$(perf-advisor completion bash)"` to ~/.bashrc
_perf_advisor() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    COMPREPLY=()
    case $before in
{cases}
        {takers}) COMPREPLY=($(compgen -W "$({sessions})" -- "$word")); return ;;
    esac
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W {options} -- "$word"))
    elif ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W {commands} -- "$word") $(compgen -f -X '!*.py' -- "$word"))
    fi
}}
complete -o default -F _perf_advisor perf-advisor
"""
_ZSH = """\
# perf-advisor: add `eval "$(perf-advisor completion zsh)"` to ~/.zshrc, after compinit
autoload -U bashcompinit && bashcompinit
"""
_FISH = """\
complete -c perf-advisor -n __fish_use_subcommand -a {commands}
complete -c perf-advisor -n "__fish_seen_subcommand_from {takers}" -xa "({sessions})"
complete -c perf-advisor -n "__fish_seen_subcommand_from recipes" -xa {recipes}
"""
# The commands that take a session.
_OF_SESSIONS = ("open", "compare", "report", "export")


def print_script(shell: Shell, commands: tuple[str, ...]) -> int:
    """Print the script for a shell. ``commands`` are the words that may come first."""
    from advisor.cli.commands.measure import measure_parser

    print(script_for(shell, measure_parser(""), commands), end="")
    return ExitCode.OK


def script_for(shell: Shell, parser: argparse.ArgumentParser, commands: Sequence[str]) -> str:
    """The script: ``parser`` has the options, ``commands`` are the words that may come first."""
    from advisor.experiment.past.journal import sessions_folder
    from advisor.recipe.catalog import load_catalog

    recipes = [recipe.id for recipe in load_catalog()]
    choices = {**_CHOICES, **dict.fromkeys(("--only", "--skip", "--accept"), recipes)}
    options = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    words = shlex.quote(" ".join(["demo", *commands]))
    folder = shlex.quote(str(sessions_folder()))
    sessions = f"ls {folder} 2>/dev/null | sed -n 's/[.]jsonl//p'"  # at once, where Python would take its time
    if shell is Shell.FISH:
        takers, named = " ".join(_OF_SESSIONS), shlex.quote(" ".join(recipes))
        head = _FISH.format(commands=words, takers=takers, sessions=sessions, recipes=named)
        return head + "".join(_fish_lines(options, choices))
    cases = "\n".join(
        f'        {name}) COMPREPLY=($(compgen -W {shlex.quote(" ".join(values))} -- "$word")); return ;;'
        for name, values in {**choices, "recipes": recipes}.items()
    )
    takers = "|".join([*_OF_SESSIONS, "--resume"])
    script = _BASH.format(
        cases=cases, options=shlex.quote(" ".join(options)), commands=words, takers=takers, sessions=sessions
    )
    return script if shell is Shell.BASH else _ZSH + script.partition("\n")[2]


def _fish_lines(options: Iterable[str], choices: Mapping[str, Iterable[str]]) -> Iterable[str]:
    for name in options:
        values = f" -xa {shlex.quote(' '.join(choices[name]))}" if name in choices else ""
        yield f"complete -c perf-advisor -l {name.removeprefix('--')}{values}\n"


def parse(arguments: Sequence[str]) -> Callable[[], int]:
    """The command with its options, to be called. Raises UsageError."""
    from advisor.cli.grammar import COMMANDS

    parser = Parser("perf-advisor completion", "Print a script with which a shell completes commands and options.")
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")
    return partial(print_script, choice_of(Shell)(parser.parse(arguments).shell), tuple(COMMANDS))
