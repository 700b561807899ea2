"""Every strategy and option of several GPUs on four models: one Markdown table each, written as the results come.

    python tests/gpu/several_gpus.py --gpus 2 --within 300 --out several_gpus.md

What matters most runs first, for all models; then options; then one GPU, ``ddp`` and the best are measured again, which
the intervals rest on.
"""

import argparse
import sys
import time
from pathlib import Path

from advisor.experiment.consent import Consent
from advisor.experiment.scaling.results import BATCH, Scaling, name_of, strategy_of
from advisor.export.formats.markdown import table_lines
from advisor.judging.judge import BASELINE
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Mode, Numerics, TargetSpec, TrialSpec, World
from advisor.report.several_gpus import scaling_table
from advisor.runner.trials import Runner

WORKLOADS = Path(__file__).parent / "workloads"
BF16 = {"precision.autocast": "bfloat16"}
CARRIED = {
    "resnet": {**BF16, "model.memory_format": "channels_last"},
    "gpt": {**BF16, "optimizer.implementation": "fused"},
    "recommender": {},
    "uneven": {**BF16, "optimizer.implementation": "fused"},
}
DDP = {"parallel.strategy": "ddp"}
SHARD = {"parallel.strategy": "fully_shard"}
BLOCKS = {"compile.mode": "default", "compile.scope": "regional"}
BY_HAND = {**DDP, "parallel.gradient_as_bucket_view": True}
FIRST = (BASELINE, Settings(DDP), Settings(SHARD))
THEN = (
    Settings(BY_HAND),
    Settings({**DDP, BATCH: 1}),  # the whole batch on each GPU
    Settings({**DDP, "parallel.bucket_cap_mb": 100}),
    Settings({**SHARD, "parallel.reshard_after_forward": False}),
    Settings({**SHARD, "parallel.shard_unit": "model"}),
)
OWN = {
    "resnet": (),
    "gpt": (
        Settings({**BY_HAND, "compile.mode": "default"}),
        Settings({**BY_HAND, "step.cuda_graph": True}),
        Settings({**DDP, "compile.mode": "default", "step.cuda_graph": True}),
        Settings({**BY_HAND, "compile.mode": "default", "step.cuda_graph": True}),
        Settings({"compile.mode": "default", "step.cuda_graph": True}),
        Settings({"compile.mode": "default"}),
        Settings(BLOCKS),
        Settings({**DDP, **BLOCKS}),
        Settings({**SHARD, **BLOCKS}),
        Settings({**DDP, "step.accumulate": 4}),
        Settings({**DDP, "step.accumulate": 4, "parallel.no_sync": True}),
    ),
    "recommender": (),
    "uneven": (Settings({**DDP, "parallel.length_bucketing": True}),),
}
REPEATED = 2
CATALOG = load_catalog()


class Table:
    """What is known of one model."""

    def __init__(self, model, options):
        self.model = model
        self.options = options
        self.scaling = Scaling(
            gpus=options.gpus,
            catalog=CATALOG,
            consent=Consent(CATALOG, Mode.TRAIN, Numerics.CLOSE),
            carried=Settings(CARRIED[model]),
            same_losses=model != "resnet",
            device_type="cuda",
        )

    def fitted(self, setup):
        """Sharding takes no parameters in channels-last format."""
        if BATCH in setup:
            return setup.with_value(BATCH, self.options.gpus * self.scaling.judge.baseline.ranks.global_batch)
        if self.model != "resnet" or strategy_of(setup) != "fully_shard":
            return setup
        return setup.with_value("model.memory_format", "contiguous")

    def measure(self, setup, number):
        setup = self.fitted(setup)
        target = f"{WORKLOADS / 'several.py'}:{self.model}"
        world = World(1 if strategy_of(setup) == "single" else self.options.gpus)
        spec = TrialSpec(
            trial_id=name_of(setup),
            target=TargetSpec(target, str(WORKLOADS)),
            settings=dict(self.scaling.carried.merged(setup)),
            measure_s=1.0,
            warmup_limit_s=1.0,
            timeout_s=min(120.0, max(20.0, self.options.until - time.monotonic())),
            log_path=str(Path(self.options.out).with_suffix("") / f"{number:03d}-{self.model}.log"),
            world=world,
        )
        began = time.monotonic()
        result = Runner().run(spec, lambda message: None)
        if result.measured or setup not in self.scaling.tried:  # a repeat that had no time left is none
            self.scaling = self.scaling.with_run(setup, result)
        told = result.reason or f"{result.blocks[0].step_ms:.2f} ms"
        print(f"{time.monotonic() - began:5.1f} s  {self.model}: {name_of(setup)}: {told}", file=sys.stderr, flush=True)
        if result.details and not result.measured:
            print(result.details[-800:], file=sys.stderr)

    def text(self):
        record = self.scaling.record()
        carried = f"In all rows: {self.scaling.carried}.\n\n"
        best = f"\nBest at the same global batch: {record.best or 'one GPU'}. {record.evidence}\n"
        return f"## {self.model}\n\n{carried}" + "\n".join(table_lines(scaling_table(record.rows))) + f"\n{best}"


def plan(tables):
    """The trials in their order."""
    for setup in FIRST:
        yield from ((table, setup) for table in tables if fits(table, setup))
    rest = max(len(THEN) + len(own) for own in OWN.values())
    for place in range(rest):
        for table in tables:
            setups = (*THEN[:2], *OWN[table.model], *THEN[2:])
            if place < len(setups) and fits(table, setups[place]):
                yield table, setups[place]
    for _ in range(REPEATED):
        for table in tables:
            yield table, BASELINE
            yield table, Settings(DDP)
        for table in tables:
            if table.scaling.stack not in ({}, DDP):
                yield table, table.scaling.stack


def fits(table, setup):
    """Neither what was left out nor what was not asked for."""
    if {strategy_of(setup), *setup} & set(table.options.without.split(",")):
        return False
    wanted = table.options.only.split(",")
    return not table.options.only or setup in FIRST or bool(set(wanted) & set(setup))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--within", type=float, default=300.0, help="seconds")
    parser.add_argument("--out", default="several_gpus.md")
    parser.add_argument("--models", default="resnet,gpt,recommender,uneven")
    parser.add_argument("--without", default="", help="strategies and settings, such as fully_shard,compile.mode")
    parser.add_argument("--only", default="", help="beside plain strategies, only what sets one of these")
    options = parser.parse_args()
    options.until = time.monotonic() + options.within
    Runner.prepare()
    tables = [Table(model, options) for model in options.models.split(",")]
    longest = 0.0
    for number, (table, setup) in enumerate(plan(tables)):
        began = time.monotonic()
        if began + longest > options.until:
            print("no time is left for more", file=sys.stderr)
            break
        table.measure(setup, number)
        longest = max(0.8 * longest, time.monotonic() - began)
        Path(options.out).write_text("\n".join(one.text() for one in tables), encoding="utf-8")
    print(Path(options.out).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
