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
_FISH = "complete -c perf-advisor -n __fish_use_subcommand -a {commands}\n"


def print_script(shell: Shell, commands: tuple[str, ...]) -> int:
    """Print the script for a shell. ``commands`` are the words that may come first."""
    from advisor.cli.commands.measure import measure_parser

    print(script_for(shell, measure_parser(""), commands), end="")
    return ExitCode.OK


def script_for(shell: Shell, parser: argparse.ArgumentParser, commands: Sequence[str]) -> str:
    """The script: ``parser`` has the options, ``commands`` are the words that may come first."""
    options = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    words = shlex.quote(" ".join(["demo", *commands]))
    if shell is Shell.FISH:
        return _FISH.format(commands=words) + "".join(_fish_lines(options))
    cases = "\n".join(
        f'        {name}) COMPREPLY=($(compgen -W {shlex.quote(" ".join(values))} -- "$word")); return ;;'
        for name, values in _CHOICES.items()
    )
    script = _BASH.format(cases=cases, options=shlex.quote(" ".join(options)), commands=words)
    return script if shell is Shell.BASH else _ZSH + script.partition("\n")[2]


def _fish_lines(options: Iterable[str]) -> Iterable[str]:
    for name in options:
        values = f" -xa {shlex.quote(' '.join(_CHOICES[name]))}" if name in _CHOICES else ""
        yield f"complete -c perf-advisor -l {name.removeprefix('--')}{values}\n"


def parse(arguments: Sequence[str]) -> Callable[[], int]:
    """The command with its options, to be called. Raises UsageError."""
    from advisor.cli.grammar import COMMANDS

    parser = Parser("perf-advisor completion", "Print a script with which a shell completes commands and options.")
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")
    return partial(print_script, choice_of(Shell)(parser.parse(arguments).shell), tuple(COMMANDS))
