"""What the parts of a session share: what was asked for, what is known so far, and how the outside is told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from advisor.catalog import Catalog
from advisor.experiment import events
from advisor.experiment.bench import Bench
from advisor.experiment.decisions import Decisions
from advisor.experiment.hints import Hints
from advisor.experiment.judge import Judge
from advisor.experiment.progress import Progress
from advisor.experiment.ranking import may_enter, recommend
from advisor.experiment.request import Request
from advisor.experiment.reserves import Reserves
from advisor.experiment.state import SessionState
from advisor.records import Candidate, Facts, Outcome, ParetoPoint, StackRecord, TrialRecord, TrialResult

_NOISY = 0.1


@dataclass
class SessionContext:
    """What is known grows as the session goes; what is kept here is told to the outside at once.

    ``past`` is the session that this one continues. ``known_facts`` and ``known_judge`` are None until the baseline is
    measured; what comes after it uses ``facts`` and ``judge``. ``hints`` are those of an earlier session of the
    workload. ``records`` are the candidates' by name, ``combinations`` what several settings did together.
    """

    request: Request
    catalog: Catalog
    bench: Bench
    decisions: Decisions
    reserves: Reserves
    progress: Progress
    emit: Callable[[events.Event], None]
    past: SessionState | None = None
    known_facts: Facts | None = None
    known_judge: Judge | None = None
    hints: Hints = field(default_factory=Hints)
    records: dict[str, TrialRecord] = field(default_factory=dict)
    stack: StackRecord | None = None
    combinations: list[ParetoPoint] = field(default_factory=list)

    @property
    def facts(self) -> Facts:
        """The facts, once the baseline is measured."""
        assert self.known_facts is not None, "the facts are known once the baseline is measured"
        return self.known_facts

    @property
    def judge(self) -> Judge:
        """The judge, once the baseline is measured."""
        assert self.known_judge is not None, "there is a judge once the baseline is measured"
        return self.known_judge

    @property
    def noisy(self) -> bool:
        """Whether identical runs differ by more than most recipes gain."""
        return self.judge.noise_floor > _NOISY

    def may_enter(self, record: TrialRecord) -> bool:
        """Whether a measured candidate may be part of the stack, as the person decided so far."""
        decision = self.decisions.of(record.candidate.recipe)
        return may_enter(self.catalog, self.facts, record, self.judge.yardstick, decision=decision)

    def was_measured(self, candidate: Candidate) -> bool:
        """Whether a candidate has had its trial: it was neither left out nor is it still to come."""
        record = self.records.get(candidate.name)
        return record is not None and record.result.outcome is not Outcome.SKIPPED

    def say(self, text: str, severity: str = "information") -> None:
        """Tell the person something."""
        self.emit(events.Said(text, severity))

    def warn(self, text: str) -> None:
        """Tell the person something that they should act on, or know when they read the figures."""
        self.say(text, "warning")

    def keep(self, record: TrialRecord) -> None:
        """Keep a candidate's record in place of an earlier one."""
        self.records[record.candidate.name] = record
        self.emit(events.TrialMeasured(record))
        self.progress.tell()

    def keep_reused(self, candidate: Candidate) -> bool:
        """Keep the record of a candidate that the past session measured already. Whether there is one."""
        old = self.past.trials.get(candidate.name) if self.past else None
        if old is None or old.result.outcome is Outcome.SKIPPED:
            return False
        self.keep(self.judge.record(candidate, old.settings, old.result))
        return True

    def skip(self, candidate: Candidate, reason: str) -> None:
        """Leave a candidate out."""
        self.keep(TrialRecord(candidate, candidate.settings, TrialResult(Outcome.SKIPPED, reason)))

    def keep_stack(self, record: StackRecord) -> None:
        """Keep the stack in place of an earlier one."""
        self.stack = record
        self.reserves.stack_cost = self.catalog.cost(record.settings)
        self.emit(events.StackMeasured(record))

    def judge_again(self) -> None:
        """Every verdict anew, after the baseline was measured once more: a machine that drifts tells less apart."""
        self.emit(events.BaselineMeasured(self.judge.baseline_record()))
        for record in list(self.records.values()):
            if record.result.measured:
                self.keep(self.judge.again(record))

    def rank(self) -> None:
        """Rank what helps."""
        stack = self.stack.settings if self.stack else {}
        by, decision = self.judge.yardstick, self.decisions.of
        ranked = recommend(self.catalog, self.facts, self.records.values(), by, stack, decision=decision)
        self.emit(events.Ranked(ranked))
