"""A request that continues an earlier session's."""

import pytest

from advisor.errors import AdvisorError
from advisor.experiment.request import Request
from advisor.records import Objective, TargetSpec


def test_what_is_not_asked_anew_stays_as_the_session_was_asked():
    """`perf-advisor TARGET --resume` measured what the session's --only had left out."""
    past = Request(TargetSpec("demo", "/a", batch_size=4), budget_s=60.0, only=("autocast",))
    assert Request(TargetSpec("demo", "/a")).continuing(past) == past
    changed = Request(TargetSpec("demo", "/b"), only=("tf32",), objective=Objective.MEMORY).continuing(past)
    assert (changed.only, changed.budget_s, changed.objective) == (("tf32",), 60.0, Objective.MEMORY)
    assert (changed.target.directory, changed.target.batch_size) == ("/b", 4)


@pytest.mark.parametrize(
    ("options", "said", "typed"),
    [
        ({"min_score": 0.75}, "need each other", "--eval"),
        ({"max_drop": 0.01}, "need each other", "--eval"),
        ({"evaluate": "train.py:evaluate", "max_drop": "0.5%"}, "'0.5%' is no number", "0.005"),
        ({"evaluate": "m:evaluate"}, "need each other", "--min-score"),
        ({"evaluate": "evaluate", "min_score": 0.75}, "'evaluate' names no function", "mymodel:evaluate"),
        ({"evaluate": "none.py:evaluate", "min_score": 0.75}, "there is no file none.py", "path"),
        ({"evaluate": "train.py:evaluate", "min_score": 0.75}, "train.py is a script", "perf-advisor init train.py"),
    ],
)
def test_a_score_that_cannot_be_taken_is_refused(tmp_path, options, said, typed):
    (tmp_path / "train.py").write_text("def evaluate(model):\n    return 1.0\n")
    with pytest.raises(AdvisorError) as error:
        Request(TargetSpec("train.py", str(tmp_path)), **options).check()
    assert said in error.value.message
    assert typed in error.value.hint
