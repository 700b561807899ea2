"""Trials whose numerics tests look at: real processes, judged as a session judges them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planted import plant_numerics

from advisor.judging.judge import CONTROL_SETTINGS, Judge, trial_record
from advisor.judging.numerics import own_rounding
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import (
    Candidate,
    Inspected,
    Mode,
    TargetSpec,
    TrialKind,
    TrialRecord,
    TrialResult,
    TrialSpec,
    Value,
)
from advisor.runner.trials import Runner


class NumericsBench:
    """A target with its baseline, its control and its reference measured, briefly; ``record`` tries settings on it."""

    def __init__(self, folder: Path, text: str, *, device: str, mode: Mode | None = None) -> None:
        self.folder = folder
        (folder / "target.py").write_text(text, encoding="utf-8")
        self.recipes = (str(plant_numerics(folder / "recipes")),)
        self.target = TargetSpec("target.py", str(folder), device=device, mode=mode)
        self.catalog = load_catalog(self.recipes)
        self.runner = Runner()
        self.told: list[object] = []
        baseline = self.trial({}, kind=TrialKind.BASELINE)
        assert baseline.measured, baseline
        workload = next(message.workload for message in self.told if isinstance(message, Inspected))
        rounding = own_rounding(self.catalog, workload)
        self.reference = self.trial({}, kind=TrialKind.REFERENCE)
        judge = Judge(
            self.catalog,
            workload.mode,
            baseline,
            reference=self.reference if self.reference.probed else None,
            own_rounding=rounding,
        )
        self.judge = judge.with_run(CONTROL_SETTINGS, self.trial({}, stream_seed=1))

    def trial(self, settings: Mapping[str, Value], **options: object) -> TrialResult:
        """Run a trial that measures next to nothing."""
        spec = TrialSpec(
            trial_id="numerics",
            target=self.target,
            settings=dict(settings),
            measure_s=0.01,
            warmup_limit_s=0.05,
            timeout_s=300.0,
            log_path=str(self.folder / "trial.log"),
            recipe_folders=self.recipes,
            **options,  # type: ignore[arg-type]
        )
        return self.runner.run(spec, self.told.append)

    def record(self, recipe: str, value: Value = True) -> TrialRecord:
        """The record of a recipe's value."""
        candidate = Candidate(recipe, self.catalog[recipe].key, value)
        settings = Settings(candidate.settings)
        return trial_record(self.judge.with_run(settings, self.trial(settings)), candidate, settings)
