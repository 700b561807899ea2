"""The help."""

import pytest

from advisor.cli.commands.measure import measure_parser
from advisor.cli.grammar import COMMANDS, parse
from advisor.cli.options import TOPICS

OPTIONS = {name for action in measure_parser("")._actions for name in action.option_strings if name.startswith("--")}


@pytest.mark.parametrize("word", ["help", "--help"])
def test_the_help_has_every_option_by_topic(word, capsys):
    with pytest.raises(SystemExit):
        parse([word])
    text = capsys.readouterr().out
    wanted = (*(f"{topic}: " for topic in TOPICS), *(f"perf-advisor {name}" for name in COMMANDS), *OPTIONS)
    assert [name for name in wanted if name not in text] == []
