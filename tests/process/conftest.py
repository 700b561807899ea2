import textwrap

import pytest
from planted import TINY_TARGET
from trial_processes import spec_of

from advisor.records import Outcome
from advisor.runner.trials import Runner


@pytest.fixture(scope="module")
def warm_fork_server(tmp_path_factory):
    """The fork server, warm: the first trial waits for its imports."""
    Runner.prepare()
    folder = tmp_path_factory.mktemp("warm")
    (folder / "warm.py").write_text(TINY_TARGET, encoding="utf-8")
    result = Runner().run(spec_of(folder, "warm.py"), lambda message: None)
    assert result.outcome is Outcome.MEASURED


@pytest.fixture
def trial(tmp_path):
    """Run a target's text as a trial: its result and its messages."""

    def run(text, *, runner=None, **changes):
        (tmp_path / "target.py").write_text(textwrap.dedent(text), encoding="utf-8")
        messages = []
        result = (runner or Runner()).run(spec_of(tmp_path, "target.py", **changes), messages.append)
        return result, messages

    return run
