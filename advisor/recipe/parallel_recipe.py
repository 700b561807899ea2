"""Common parts of recipes for several GPUs: when they apply, and the code that does the same in a user's own loop."""

from typing import ClassVar

from advisor.figures.formatting import format_bytes
from advisor.recipe.contract import TRAINING, Recipe, Stage
from advisor.records import Bottleneck, Facts, Value, Values

STRATEGY = "parallel.strategy"
SINGLE = "single"
PARALLEL = "parallel."
# Sharding is passed over where parameters, gradients and optimizer state take less than this share of one GPU.
_FITS_EASILY = 0.25
_CODE = """\
# under torchrun, after torch.distributed.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(
    model, device_ids=[device.index], FIELD={value}
)
"""


class ParallelRecipe(Recipe):
    """A recipe whose value goes into the plan's field of the same name, which ``step/spread.py`` obeys.

    Its code is the model in DistributedDataParallel with the value as an argument, unless it says another.
    ``strategies``: those under which the setting has an effect.
    """

    modes = TRAINING
    attacks = frozenset({Bottleneck.COMMUNICATION})
    stage = Stage.STEP
    strategies: ClassVar[frozenset[str]] = frozenset({"ddp"})

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "key" in vars(cls):
            cls.plan_field = cls.key.removeprefix(PARALLEL)
            cls.shown = cls.shown or ("" if cls.codes else _CODE.replace("FIELD", cls.plan_field))

    def conflict(self, value: Value, settings: Values) -> str | None:
        strategy = settings.get(STRATEGY)
        if value == self.default or strategy is None or strategy in self.strategies:
            return None
        return f"{self.key} belongs to {' or '.join(sorted(self.strategies))}, and {STRATEGY} is {strategy}"


def why_not_sharded(facts: Facts) -> str:
    """The reason not to try sharding, with the calculation; empty if sharding is worth a trial."""
    memory, optimizer = facts.workload.device_memory_bytes, facts.workload.optimizer
    needed = 2 * facts.workload.parameter_bytes + (optimizer.state_bytes if optimizer else 0)
    if not memory or needed >= _FITS_EASILY * memory:
        return ""
    return (
        f"parameters, gradients and optimizer state take {format_bytes(needed)} of {format_bytes(memory)} on each GPU, "
        "so there is nothing to gain by dividing them"
    )
