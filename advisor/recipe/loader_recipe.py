"""Common parts of recipes for a DataLoader: the cases with nothing to set, and those with nothing to gain."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from advisor.errors import RefusedError
from advisor.figures.formatting import format_percent
from advisor.inlined.code import names_in
from advisor.recipe import Components, Recipe, Stage, code_of
from advisor.records import Bottleneck, Facts, LoaderFacts, Phase, Proposal, Skip, Value, Values

# Smallest share of a step that phases must take for a gain to be visible. Unitless.
LEAST_SHARE = 0.01
NO_LOADER = "the data does not come from a DataLoader"


class Expression(str):
    """An argument given as code: it is written without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


def little_time_in(facts: Facts, phases: Collection[Phase]) -> Skip | None:
    """A reason not to try shortening these phases; None where they take long enough, or have not been timed."""
    share = facts.profile.share(*phases) if facts.profile else 1.0
    if share >= LEAST_SHARE:
        return None
    named = " and ".join(phase.value for phase in Phase if phase in phases)
    return Skip(f"{named} {'is' if len(phases) == 1 else 'are'} {format_percent(share, digits=1)} of the step")


class LoaderRecipe(Recipe):
    """A recipe that rebuilds a DataLoader with other constructor arguments.

    ``imported`` is an import of what ``code`` defines, for a script in which a person reviews every line.
    ``module``: the module with the functions that the arguments call, named as for ``code_of``.
    """

    imported: ClassVar[str] = ""
    module: ClassVar[str] = ""

    attacks = frozenset({Bottleneck.INPUT})
    phases = frozenset({Phase.DATA_WAIT})
    stage = Stage.DATA

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        """The values to try for a loader that can be rebuilt: all but the default, unless it is overridden."""
        return super().candidates(facts)

    def candidates(self, facts: Facts) -> Proposal:
        loader = facts.workload.loader
        if loader is None:
            return Skip(NO_LOADER)
        return Skip(loader.copy_problem) if loader.copy_problem else self.values_for(loader, facts)

    def options(self, value: Value) -> Mapping[str, Any]:
        """The arguments of the DataLoader's constructor that a value stands for: the one of the key's name.

        A computed one is an :class:`Expression` of ``loader``, ``device`` and the functions of ``module``.
        """
        return {self.key.partition(".")[2]: value}

    def apply(self, workload: Components, value: Value) -> None:
        options = self.options(value)
        if not options or not workload.has_loader:
            return
        functions = names_in(self.module) if self.module else {}
        names = {"loader": workload.data, "device": workload.plan.device, **functions}
        given = {}
        try:
            for name, option in options.items():
                given[name] = eval(option, names) if isinstance(option, Expression) else option  # noqa: S307 - our own
        except (ValueError, TypeError, LookupError, AttributeError) as error:  # of the data
            raise RefusedError(str(error) if isinstance(error, ValueError) else repr(error)) from error
        workload.data = names_in("loader", "step")["rebuild"](workload.data, **given)
        if self.plan_field:
            super().apply(workload, value)

    def code(self, value: Value) -> str:
        if value in self.codes:
            return self.codes[value]
        arguments = ", ".join(f"{name}={option!r}" for name, option in self.options(value).items())
        call = f"loader = torch.utils.data.DataLoader(..., {arguments})\n"
        return code_of(self.module, call) if self.module else call


class WorkerRecipe(LoaderRecipe):
    """A recipe for the workers of a DataLoader. Its default leaves them as PyTorch starts them.

    ``without_workers`` tells the person why a loader without workers has nothing for it.
    """

    without_workers: ClassVar[str]

    def candidates(self, facts: Facts) -> Proposal:
        loader = facts.workload.loader
        idle = loader is not None and not loader.copy_problem and not loader.num_workers
        return Skip(self.without_workers) if idle else super().candidates(facts)

    def apply(self, workload: Components, value: Value) -> None:
        if workload.has_loader and workload.data.num_workers:
            super().apply(workload, value)

    def conflict(self, value: Value, settings: Values) -> str | None:
        alone = value != self.default and settings.get("data.num_workers") == 0
        return f"{self.key} is about workers, and data.num_workers is 0" if alone else None
