"""The one rule of consent: which settings may be used without asking the person, and which need their consent."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from advisor.experiment.control import OTHER_VALUE, REJECTED, Decision
from advisor.figures.sweep import RECIPE as BATCH_SIZE
from advisor.recipe.catalog import Catalog
from advisor.records import Candidate, Mode, Numerics, NumericsResult, Value


@dataclass(frozen=True, slots=True)
class Consent:
    """Settings may be used if none of their recipes is rejected and they change results no more than is allowed.

    ``allow`` is the worst numerics class that needs no consent. An accepted recipe may change what it declares, or what
    a trial of it alone has shown. ``values`` maps a recipe to the only value that the person accepted, if there is one.
    With ``by_score``, settings that change results more may be tried, and their score decides.
    """

    catalog: Catalog
    mode: Mode
    allow: Numerics
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)
    by_score: bool = False

    def why_not(
        self, settings: Mapping[str, Value], measured: NumericsResult | None = None, *, seen: Iterable[Numerics] = ()
    ) -> str:
        """The reason not to use settings; empty if they may be used. ``seen``: accepted settings' own numerics."""
        recipes = self.catalog.in_order(settings)
        if ruled_out := next(filter(None, (self.ruled_out(recipe.id, value) for recipe, value in recipes)), ""):
            return ruled_out
        classes, waits = [self.allow, *seen], False
        for recipe, value in recipes:
            declared = recipe.numerics_of(value, self.mode)
            if self.accepts(recipe.id, value):
                classes.append(declared)
            elif self._needs_word(recipe.id, value):
                return f"{recipe.id} changes results: it needs your consent"
            else:
                waits |= declared.exceeds(self.allow)
        if measured is None or not (waits or measured.decisive.exceeds(Numerics.worst(*classes))):
            return ""
        return measured.score.problem if measured.score else f"the numerics are {measured.decisive}: {measured.text}"

    def permits(self, settings: Mapping[str, Value], measured: NumericsResult | None = None) -> bool:
        """Whether these settings may be used."""
        return not self.why_not(settings, measured)

    def needs_consent(self, candidate: Candidate) -> bool:
        """Whether a candidate is declared to change more than is allowed and the person has not accepted it."""
        recipe, value = candidate.recipe, candidate.value
        return self._needs_word(recipe, value) and not self.accepts(recipe, value)

    def ruled_out(self, recipe: str, value: Value) -> str:
        """The decision that rules out a value of a recipe, as a reason; empty if no decision does."""
        if self.rejects(recipe):
            return REJECTED
        return "" if self.values.get(recipe, value) == value else OTHER_VALUE

    def rejects(self, recipe: str) -> bool:
        """Whether the person rejected a recipe."""
        return self.decisions.get(recipe) is Decision.REJECTED

    def accepts(self, recipe: str, value: Value | None = None) -> bool:
        """Whether the person accepted a recipe and, if a value is given, this value."""
        if self.decisions.get(recipe) is not Decision.ACCEPTED:
            return False
        return value is None or self.values.get(recipe, value) == value

    def exceeds(self, candidate: Candidate, measured: NumericsResult | None) -> bool:
        """Whether a candidate changes more than is allowed (declared, scored or measured), even if accepted."""
        declared = self._needs_word(candidate.recipe, candidate.value)
        if declared or measured is None:
            return declared
        if measured.score is not None:
            return bool(measured.score.problem)
        return Numerics.worst(measured.declared, measured.decisive).exceeds(self.allow)

    def _needs_word(self, recipe: str, value: Value) -> bool:
        """Whether a recipe's declared change needs the person's consent. A score never permits a larger batch."""
        declared = self.catalog[recipe].numerics_of(value, self.mode)
        return declared.exceeds(self.allow) and not (self.by_score and recipe != BATCH_SIZE)
