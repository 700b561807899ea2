"""Common parts of recipes for a DataLoader."""

from collections.abc import Mapping
from typing import Any, ClassVar

from advisor.errors import RefusedError
from advisor.inlined.code import names_in
from advisor.recipe import Components, Recipe, Stage, code_of
from advisor.records import Bottleneck, Facts, LoaderFacts, Phase, Proposal, Skip, Value, Values

NO_LOADER = "the data does not come from a DataLoader"


class Expression(str):
    """An argument given as code: it is written without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


class LoaderRecipe(Recipe):
    """A recipe that rebuilds a DataLoader with other constructor arguments.

    ``imported`` is an import of what ``code`` defines, for a script in which a person reviews every line.
    ``module``: the module with the functions that the arguments call, named as for ``code_of``.
    ``without_workers``: why a loader without workers has nothing for a recipe about them, which leaves it alone.
    """

    imported: ClassVar[str] = ""
    module: ClassVar[str] = ""
    without_workers: ClassVar[str] = ""

    attacks = frozenset({Bottleneck.INPUT})
    phases = frozenset({Phase.DATA_WAIT})
    stage = Stage.DATA

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        """The values to try for a loader that can be rebuilt: all but the default, unless it is overridden."""
        return super().candidates(facts)

    def candidates(self, facts: Facts) -> Proposal:
        loader = facts.workload.loader
        if loader is None or loader.copy_problem:
            return Skip(loader.copy_problem if loader else NO_LOADER)
        if self.without_workers and not loader.num_workers:
            return Skip(self.without_workers)
        return self.values_for(loader, facts)

    def options(self, value: Value) -> Mapping[str, Any]:
        """The arguments of the DataLoader's constructor that a value stands for: the one of the key's name.

        A computed one is an :class:`Expression` of ``loader``, ``device`` and the functions of ``module``.
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
        except (ValueError, TypeError, LookupError, AttributeError) as error:  # of the data
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
