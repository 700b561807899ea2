"""A request that continues an earlier session's."""

from advisor.experiment.request import Request
from advisor.records import Objective, TargetSpec


def test_what_is_not_asked_anew_stays_as_the_session_was_asked():
    """`perf-advisor TARGET --resume` measured what the session's --only had left out."""
    past = Request(TargetSpec("demo", "/a", batch_size=4), budget_s=60.0, only=("autocast",))
    assert Request(TargetSpec("demo", "/a")).continuing(past) == past
    changed = Request(TargetSpec("demo", "/b"), only=("tf32",), objective=Objective.MEMORY).continuing(past)
    assert (changed.only, changed.budget_s, changed.objective) == (("tf32",), 60.0, Objective.MEMORY)
    assert (changed.target.directory, changed.target.batch_size) == ("/b", 4)
