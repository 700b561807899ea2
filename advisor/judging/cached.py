"""Answers that a frozen value remembers: the search asks the same of it for each move."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

ValueT = TypeVar("ValueT")
AnswerT = TypeVar("AnswerT")
P = ParamSpec("P")


def cached(method: Callable[Concatenate[ValueT, P], AnswerT]) -> Callable[Concatenate[ValueT, P], AnswerT]:
    """A method of a frozen value, which has a namespace, that works each answer out once, by its hashable arguments."""
    place = f"_{method.__name__}_cached"

    @functools.wraps(method)
    def answer(value: ValueT, /, *given: P.args, **named: P.kwargs) -> AnswerT:
        answers: dict[Any, AnswerT] = vars(value).setdefault(place, {})
        asked = (given, *named.items())
        if asked not in answers:
            answers[asked] = method(value, *given, **named)
        return answers[asked]

    return answer
