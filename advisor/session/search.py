"""The search for the stack: grow it from the winners, retry known partners, then compile on top, then leave one out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from advisor.catalog import Catalog
from advisor.records import Candidate, TrialRecord, TrialResult
from advisor.session.bench import Bench
from advisor.session.judge import Judge, rates
from advisor.session.ranking import best_per_recipe, rate
from advisor.settings import Settings
from advisor.stats import ratio_interval

# A partner that alone cost more than this is not tried again in company.
_HOPELESS = 0.6


@dataclass
class Stack:
    """The settings found so far with the result that measured exactly them, and why others are not among them."""

    settings: Settings = field(default_factory=Settings)
    result: TrialResult | None = None
    dropped: dict[str, str] = field(default_factory=dict)


class StackSearch:
    """Builds the stack from measured candidates. Every step is a trial of the whole combination."""

    def __init__(
        self,
        bench: Bench,
        judge: Judge,
        catalog: Catalog,
        *,
        allowed: Callable[[TrialRecord], bool],
        reserve_s: Callable[[], float],
        progress: Callable[[Stack], None],
    ) -> None:
        self._bench = bench
        self._judge = judge
        self._catalog = catalog
        self._allowed = allowed
        self._reserve_s = reserve_s
        self._progress = progress
        self.stack = Stack()

    def grow(self, records: Iterable[TrialRecord]) -> None:
        """Add the winners, the best first, keeping each that still helps; then known partners of what is in."""
        known = list(records)
        for record in best_per_recipe(filter(self._allowed, known)):
            self._try(record)
        self.add_partners(known)

    def add_partners(self, records: Iterable[TrialRecord]) -> None:
        """Try what did not help alone but is known to help in the company of a recipe of the stack."""
        partners = [record for record in records if self._allowed(record) and self._is_partner(record)]
        for record in sorted(partners, key=rate, reverse=True):
            if record.candidate.key not in self.stack.settings:
                self._try(record)

    def try_expensive(self, candidate: Candidate) -> TrialRecord | None:
        """Measure an expensive candidate on top of the stack; it stays when it helps. None when it cannot be tried."""
        settings = self.stack.settings.with_value(candidate.key, candidate.value)
        if self._catalog.conflict(settings):
            return None
        result = self._measure(settings)
        record = self._judge.record(candidate, settings, result)
        if self._allowed(record) and self._better(result):
            self._keep(settings, result)
        return record

    def leave_one_out(self) -> None:
        """Remove what no longer earns its place: of two within the noise, the simpler stays."""
        for key in list(self.stack.settings):
            settings = self.stack.settings.without(key)
            if not settings or not self._affordable(settings):
                continue
            result = self._measure(settings)
            if result.measured and not self._better_than(self.stack.result, result):
                self.stack.dropped[key] = "the others are as fast without it"
                self._keep(settings, result)

    def _try(self, record: TrialRecord) -> None:
        key = record.candidate.key
        settings = self.stack.settings.merged(record.candidate.settings)
        reason = self._catalog.conflict(settings)
        if reason:
            self.stack.dropped[key] = reason
            return
        if not self.stack.settings:
            if record.comparison is not None and record.comparison.ci_low > 1:
                self._keep(settings, record.result)
            return
        if not self._affordable(settings):
            self.stack.dropped.setdefault(key, "the budget ran out before it was tried in company")
            return
        result = self._measure(settings)
        if self._better(result):
            self.stack.dropped.pop(key, None)
            self._keep(settings, result)
        elif result.measured:
            self.stack.dropped[key] = "it adds nothing to the others"
        else:
            self.stack.dropped[key] = f"together with the others it fails: {result.reason}"

    def _measure(self, settings: Settings) -> TrialResult:
        spec = self._bench.spec(f"stack: {settings}", settings, reserve_s=self._reserve_s())
        return self._bench.run(spec, cost=self._catalog.cost(settings))

    def _keep(self, settings: Settings, result: TrialResult) -> None:
        self.stack.settings, self.stack.result = settings, result
        self._progress(self.stack)

    def _better(self, result: TrialResult) -> bool:
        """Whether a combination is allowed and faster than the stack so far."""
        if not result.measured or not self._fits(result):
            return False
        if self.stack.result is None:
            comparison = self._judge.compare(result)
            return comparison.ci_low > 1 + comparison.noise_floor
        return self._better_than(result, self.stack.result)

    def _better_than(self, result: TrialResult | None, other: TrialResult) -> bool:
        if result is None:
            return False
        _, low, _ = ratio_interval(rates(result.blocks), rates(other.blocks))
        return low > 1

    def _fits(self, result: TrialResult) -> bool:
        limit = self._bench.request.memory_limit_bytes
        return limit is None or result.peak_reserved_bytes is None or result.peak_reserved_bytes <= limit

    def _affordable(self, settings: Settings) -> bool:
        budget = self._bench.budget
        return budget.allows(budget.expected_s(cost=self._catalog.cost(settings)), reserve_s=self._reserve_s())

    def _is_partner(self, record: TrialRecord) -> bool:
        recipe = self._catalog[record.candidate.recipe]
        company = {other.id for other, _ in self._catalog.in_order(self.stack.settings)}
        speedup = record.comparison.speedup if record.comparison else 0.0
        return bool(company & recipe.partners) and speedup > _HOPELESS
