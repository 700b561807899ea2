"""What each candidate does alone, or on top of given settings: one trial each, without a search.

    python tests/gpu/alone.py reports/habits.json tests/gpu/workloads/habits.py
    python tests/gpu/alone.py reports/gpt2.json tests/gpu/workloads/gpt2.py --on precision.autocast=bfloat16 --only sdpa
    python tests/gpu/recipe_table.py reports/*.json

A session spends its budget on the best stack and may not reach what helps few; this tries all that applies here. The
baseline runs between any two candidates: each is compared with its neighbours, so that drift falls on both, and how far
the baselines lie apart widens its interval. What ``--on`` sets is part of the baseline. On the CPU, ``--beside``
has each candidate and the baseline take turns block by block instead, for machines that drift from trial to trial.
"""

import argparse
import itertools
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import yaml

from advisor.experiment.measuring.bench import Bench
from advisor.experiment.measuring.budget import Budget
from advisor.experiment.measuring.turns import side_by_side
from advisor.experiment.past.journal import Journal
from advisor.experiment.request import Request
from advisor.figures.stats import SELECTION, process_spread, ratio_interval
from advisor.judging.judge import CONTROL_SETTINGS, Judge
from advisor.judging.records import trial_record
from advisor.judging.runs import rates
from advisor.machine.hardware import inspect_hardware
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Comparison, Facts, Inspected, Mode, Profiled, TargetSpec, TrialKind, TrialSpec
from advisor.runner.trials import Runner


class Alone:
    """A workload, its baseline, and the verdicts on its candidates so far."""

    def __init__(self, options):
        self.options = options
        self.catalog = load_catalog()
        self.runner = Runner()
        self.started = time.monotonic()
        self.folder = tempfile.TemporaryDirectory()
        mode = Mode(options.mode) if options.mode else None
        file, _, function = options.workload.partition(":")
        target = f"{Path(file).resolve()}:{function or 'build'}"
        self.target = TargetSpec(target, str(Path.cwd()), mode=mode, batch_size=options.batch_size)
        self.on = dict(yaml.safe_load("\n".join(text.replace("=", ": ", 1) for text in options.on)) or {})
        self.messages = []

    def run(self):
        judge, facts = self.baseline()
        proposals = self.catalog.propose(facts, only=self.options.only, skip=(*self.options.skip, "control"))
        judge = judge.with_run(CONTROL_SETTINGS, self.trial("control", {**self.on, "control.noop": True}, seed=1))
        rows = self.beside(judge, proposals) if self.options.beside else self.in_turn(judge, proposals)
        report = {"on": self.on, "trials": rows, "skipped": dict(proposals.skipped)}
        self.options.report.parent.mkdir(parents=True, exist_ok=True)
        self.options.report.write_text(json.dumps(report, indent=1), encoding="utf-8")

    def beside(self, judge, proposals):
        """Rows of candidates that took turns with the baseline block by block."""
        request = Request(self.target, budget_s=100.0)
        journal = Journal(Path(self.folder.name, "beside.jsonl"), request)
        bench = Bench(request, self.runner, Budget(100.0), journal, emit=lambda event: None, catalog=self.catalog)
        rows = []
        for candidate in self.in_time(proposals):
            bench.budget = Budget(request.budget_s)
            settings = Settings(candidate.settings)
            evidence = side_by_side(bench, settings)
            known = judge
            for _, result in evidence.runs:
                known = known.with_run(settings, result)
            if evidence.turns is not None:
                known = known.with_run(settings, *evidence.turns.new)
                known = known.with_turns(settings, evidence.turns)
            record = trial_record(known, candidate, settings)
            print(f"{time.monotonic() - self.started:5.0f} s  {candidate.name}: {record.verdict}", flush=True)
            rows.append(row_of(judge, record))
        return rows

    def in_turn(self, judge, proposals):
        """Rows of candidates that ran as whole trials between two of the baseline."""
        baselines, tried = [judge.baseline], []
        for number, candidate in enumerate(self.in_time(proposals), 1):
            tried.append((candidate, self.trial(candidate.name, {**self.on, **candidate.settings})))
            again = self.trial("baseline", self.on, seed=1 + number)
            baselines.append(again if again.measured else baselines[-1])
        spread = process_spread([[rate_of(run) for run in baselines]], prior=judge.prior)
        neighbours = itertools.pairwise(baselines)
        return [self.row(judge, *pair, near, spread) for pair, near in zip(tried, neighbours, strict=True)]

    def in_time(self, proposals):
        """The candidates that are begun before the limit."""
        for candidate in proposals.candidates:
            if time.monotonic() - self.started > self.options.limit:
                print(f"the limit ended it before {candidate.name}", flush=True)
                return
            yield candidate

    def baseline(self):
        result = self.trial("baseline", self.on, kind=TrialKind.PROFILE)
        if not result.measured:
            raise SystemExit(f"the baseline failed: {result.reason}")
        inspected = next(message for message in self.messages if isinstance(message, Inspected))
        profiled = next(message for message in self.messages if isinstance(message, Profiled))
        workload = inspected.workload
        workload = replace(workload, current={**workload.current, **self.on})
        peaks = {"peak_allocated_bytes": result.peak_allocated_bytes, "peak_reserved_bytes": result.peak_reserved_bytes}
        facts = Facts(inspect_hardware(), workload, profiled.profile, inspected.versions, **peaks)
        if (result.build_s or 0) > 0.2:
            self.runner.build_once(self.target, 0, f"{self.folder.name}/build.log", 60.0)
        again = self.trial("baseline", self.on)
        judge = Judge(self.catalog, workload.mode, again if again.measured else result)
        return judge, facts

    def trial(self, name, settings, *, seed=0, **stages):
        spec = TrialSpec(
            name,
            self.target,
            settings,
            measure_s=self.options.measure,
            warmup_limit_s=1.5 * self.options.measure,
            timeout_s=self.options.timeout,
            log_path=f"{self.folder.name}/{name}.log",
            stream_seed=seed,
            environment=self.catalog.environment(settings),
            **stages,
        )
        result = self.runner.run(spec, self.messages.append)
        print(f"{time.monotonic() - self.started:5.0f} s  {name}: {result.outcome} {result.reason}", flush=True)
        return result

    def row(self, judge, candidate, result, neighbours, spread):
        settings = Settings({**self.on, **candidate.settings})
        record = trial_record(judge.with_run(settings, result), candidate, settings)
        if record.result.measured:
            sides = [rates(record.result.blocks)], [rates(run.blocks) for run in neighbours]
            comparison = Comparison(*ratio_interval(*sides, spread, confidence=SELECTION))
            record = replace(record, comparison=comparison)
        return row_of(judge, record)


def row_of(judge, record):
    """A record as the report has it: the names are those of a session's JSON report."""
    settings = dict(record.candidate.settings)
    row = {"recipe": record.candidate.recipe, "candidate": settings, "settings": settings}
    row |= {"verdict": str(record.verdict), "reason": record.result.reason, "already_on": record.candidate.already_on}
    if record.result.measured:
        before, after = judge.baseline.peak_reserved_bytes, record.result.peak_reserved_bytes
        row |= {
            "speedup": record.comparison.speedup,
            "ci": [record.comparison.ci_low, record.comparison.ci_high],
            "memory": after / before if after and before else None,
            "numerics": str(record.numerics.decisive),
        }
    return row


def rate_of(result):
    """Samples per second: the median over a run's blocks."""
    return median(rates(result.blocks))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="where the JSON report goes")
    parser.add_argument("workload", help="a file, or file:function")
    parser.add_argument("--on", action="append", default=[], metavar="KEY=VALUE", help="a setting of the baseline")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--skip", type=lambda text: text.split(","), default=[])
    parser.add_argument("--beside", action="store_true", help="on the CPU: block by block beside the baseline")
    parser.add_argument("--mode")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--measure", type=float, default=1.2, metavar="S", help="seconds measured in each trial")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="the longest that a trial may take")
    parser.add_argument("--limit", type=float, default=600.0, metavar="S", help="no candidate is begun after that")
    options = parser.parse_args()
    if options.beside and options.on:
        parser.error("--beside compares with the workload as it is, so it takes no --on")
    Runner.prepare()
    Alone(options).run()


if __name__ == "__main__":
    main()
