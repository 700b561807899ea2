"""``perf-advisor completion``: a script with which a shell completes commands, options and their values."""

import shlex
from collections.abc import Sequence

from advisor.cli.options import CHOICES, TOPICS
from advisor.cli.parser import Parser
from advisor.errors import ExitCode
from advisor.figures.options import choice_of
from advisor.records.kinds import DEVICES, Shell

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
        lines = [_FISH.format(commands=words, takers=takers, sessions=sessions, recipes=named)]
        for name in ("--version", "--help", *options):
            values = f" -xa {shlex.quote(' '.join(choices[name]))}" if name in choices else ""
            lines.append(f"complete -c perf-advisor -l {name.removeprefix('--')}{values}\n")
        return "".join(lines)
    cases = "\n".join(
        f'        {name}) COMPREPLY=($(compgen -W {shlex.quote(" ".join(values))} -- "$word")); return ;;'
        for name, values in {**choices, "recipes": recipes}.items()
    )
    takers = "|".join([*_OF_SESSIONS, "--resume"])
    listed = shlex.quote(" ".join(["--version", "--help", *options]))
    script = _BASH.format(cases=cases, options=listed, commands=words, takers=takers, sessions=sessions)
    return script if shell is Shell.BASH else _ZSH + script.partition("\n")[2]


def run(arguments: Sequence[str]) -> int:
    """Print the script for a shell. Raises UsageError."""
    from advisor.cli.grammar import COMMANDS

    parser = Parser("perf-advisor completion", "Print a script with which a shell completes commands and options.")
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")
    print(script_for(choice_of(Shell)(parser.parse(arguments).shell), tuple(COMMANDS)), end="")
    return ExitCode.OK
