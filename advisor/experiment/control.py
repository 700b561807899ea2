"""The person's decisions on recipes, and the reasons that follow from their requests."""

from enum import StrEnum

# Reasons that a candidate is not tried or a setting is not in the stack.
REJECTED = "you rejected it"
OTHER_VALUE = "you accepted another value of it"
SKIPPED = "you skipped it"
ENDED = "you ended the session before its turn"
UNCLEAR_TOGETHER = "it is unclear whether the settings are better together: more budget or a quiet machine decides"
RAISE_BUDGET = "raise --budget to try it"  # the end of each reason that a larger budget removes


class Decision(StrEnum):
    """The person's answer to a recommendation."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
