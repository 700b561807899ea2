"""Base classes of recipes for a DataLoader and of recipes for several GPUs."""

from collections.abc import Mapping
from typing import Any, ClassVar

from advisor.errors import RefusedError
from advisor.figures.formatting import format_bytes
from advisor.inlined.code import code_of, names_in
from advisor.recipe.contract import TRAINING, Components, Recipe, Stage
from advisor.records import Bottleneck, Facts, LoaderFacts, Phase, Proposal, Skip, Value, Values

NO_LOADER = "the data does not come from a DataLoader"
STRATEGY = "parallel.strategy"
SINGLE = "single"
PARALLEL = "parallel."
# Sharding is not tried if parameters, gradients and optimizer state take less than this share of one GPU's memory.
_FITS_EASILY = 0.25
_CODE = """\
# under torchrun, after torch.distributed.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(
    model, device_ids=[device.index], FIELD={value}
)
"""


class Expression(str):
    """An argument given as code: it is written without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


class LoaderRecipe(Recipe):
    """A recipe that rebuilds a DataLoader with other constructor arguments."""

    imported: ClassVar[str] = ""  # an import that replaces the definitions of ``code`` in a person's changed script
    module: ClassVar[str] = ""  # the module with the functions that the arguments call, named as for ``code_of``
    without_workers: ClassVar[str] = ""  # the reason that the recipe skips a loader without workers, if it does

    attacks = frozenset({Bottleneck.INPUT})
    phases = frozenset({Phase.DATA_WAIT})
    stage = Stage.DATA

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        """The values to try for a loader that can be rebuilt. If not overridden: all values but the default."""
        return super().candidates(facts)

    def candidates(self, facts: Facts) -> Proposal:
        loader = facts.workload.loader
        if loader is None or loader.copy_problem:
            return Skip(loader.copy_problem if loader else NO_LOADER)
        if self.without_workers and not loader.num_workers:
            return Skip(self.without_workers)
        return self.values_for(loader, facts)

    def options(self, value: Value) -> Mapping[str, Any]:
        """The arguments of the DataLoader's constructor for a value. If not overridden: the one that the key names.

        A computed argument is an :class:`Expression` of ``loader``, ``device`` and the functions of ``module``.
        """
        return {self.key.partition(".")[2]: value}

    def apply(self, workload: Components, value: Value) -> None:
        options = self.options(value)
        if not options or not workload.has_loader or (self.without_workers and not workload.data.num_workers):
            return
        functions = names_in(self.module) if self.module else {}
        names = {"loader": workload.data, "device": workload.plan.device, **functions}
        given = {}
        try:
            for name, option in options.items():
                given[name] = eval(option, names) if isinstance(option, Expression) else option  # noqa: S307 - our own
        except (ValueError, TypeError, LookupError, AttributeError) as error:  # the user's data may raise these
            raise RefusedError(str(error) if isinstance(error, ValueError) else repr(error)) from error
        workload.data = names_in("loader", "step")["rebuild"](workload.data, **given)
        if self.plan_field:
            super().apply(workload, value)

    def code(self, value: Value) -> str:
        options = self.options(value)
        if value in self.codes or not options:
            return super().code(value)
        arguments = ", ".join(f"{name}={option!r}" for name, option in options.items())
        call = f"loader = torch.utils.data.DataLoader(..., {arguments})\n"
        return code_of(self.module, call) if self.module else call

    def conflict(self, value: Value, settings: Values) -> str | None:
        if self.without_workers and value != self.default and settings.get("data.num_workers") == 0:
            return f"{self.key} is about workers, and data.num_workers is 0"
        return super().conflict(value, settings)


class ParallelRecipe(Recipe):
    """A recipe whose value goes into the plan's field of the same name, which ``step/spread.py`` obeys.

    If the recipe has no code, its code is DistributedDataParallel with the value as an argument.
    """

    modes = TRAINING
    attacks = frozenset({Bottleneck.COMMUNICATION})
    stage = Stage.STEP
    strategies: ClassVar[frozenset[str]] = frozenset({"ddp"})  # the strategies with which the setting has an effect

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
