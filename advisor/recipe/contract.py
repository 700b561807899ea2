"""The recipe contract: one optimization, one file, one setting key.

A recipe file's module docstring is the card that the app shows, under the headings in ``HEADINGS``. The class says
what the recipe is; ``candidates`` proposes values, ``apply`` puts one into effect, ``code`` shows it as Python.
Recipe modules never import torch at module level: the app's process reads them too.
"""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from advisor.inlined.code import code_of, names_in
from advisor.recipe.plan import StepPlan
from advisor.records import Bottleneck, Facts, Mode, Numerics, Phase, Proposal, Skip, Value, Values
from advisor.records.kinds import DEVICES, text_of
from advisor.records.workload import TENSOR_CORES_SINCE

HEADINGS = ("What it does", "Why it helps", "When it does not", "Numerics", "References")
# A heading: before its text with a colon, or on a separate line, perhaps underlined.
_HEADING = re.compile(rf"^({'|'.join(HEADINGS)})(?:: +|:?\n(?:-+\n)?)", re.M)
BOTH_MODES = frozenset({Mode.TRAIN, Mode.INFER})
TRAINING = frozenset({Mode.TRAIN})
INFERENCE = frozenset({Mode.INFER})
CUDA = frozenset({"cuda"})
CPU = frozenset({"cpu"})
NEEDS_PROFILE = Skip("known only after the step was profiled")

# Expected speed-up of a value without a known figure. Factors; most rows of tests/gpu/RESULTS.md are close to them.
_GAIN_OF_USUAL = 1.05
_GAIN_OF_OTHERS = 1.02
# If the device is busy for less than this share of a step, the step waits for the host. Unitless; below it, a CUDA
# graph gave more than any faster kernel (tests/gpu/RESULTS.md, "mlp12", "small_resnet18").
_BUSY_DEVICE = 0.6
# Without a profile, a model with fewer parameters counts as host-bound on a GPU. mlp12 has 3 million, ResNet-50 25.
_FEW_PARAMETERS = 5_000_000
# The largest share of a step that a gain may save. Unitless; it limits the gain to a factor of ten.
_MOST_OF_A_STEP = 0.9

_LOOPS = {Mode.TRAIN: "training", Mode.INFER: "inference"}
# Values that switch a setting off.
_OFF = ("none", "default", False)
# For each imported recipe with ``compiles``: its key, and its value that does not compile.
NOT_COMPILED: dict[str, Value] = {}
# The modes of torch.compile that use CUDA graphs, each with the same mode without graphs.
MODES_WITH_GRAPHS: Mapping[Value, Value] = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}


class Stage(IntEnum):
    """The stage of a trial at which a setting is applied; lower stages come first."""

    ENVIRONMENT = 0
    GLOBAL = 1
    MODEL = 2
    OPTIMIZER = 3
    DATA = 4
    COMPILE = 5
    STEP = 6


@dataclass(slots=True)
class Components:
    """The parts of a workload that a recipe may change: the objects, and the plan of how a step runs."""

    model: Any
    optimizer: Any
    data: Any  # a DataLoader, one batch, a callable ``batch_size -> batch``, or None if only the model is known
    plan: StepPlan
    batch_size: int | None = None
    own_step: Any = None  # a step that the user wrote; None if the step is made of these parts

    @property
    def has_loader(self) -> bool:
        """Whether the data comes from a DataLoader (looked up without importing torch)."""
        loaders = sys.modules.get("torch.utils.data")
        return loaders is not None and isinstance(self.data, loaders.DataLoader)


@dataclass(frozen=True, slots=True)
class WholeNumbers:
    """The values of a numeric setting: whole numbers from ``least`` to a million. Iterating gives only ``such_as``."""

    least: int
    such_as: tuple[int, ...]

    def __iter__(self) -> Iterator[Value]:
        return iter(self.such_as)

    def __contains__(self, value: Value) -> bool:
        return type(value) is int and self.least <= value <= 1_000_000


class Recipe:
    """One optimization. Class attributes describe it; the module docstring explains it.

    A class with a ``key`` is a recipe; a class without one is a base class. These attributes have defaults: ``id`` is
    the file's name, ``title`` the card's first line, ``numerics`` the first word of the card's section "Numerics".
    ``values``: all values of the setting. Settings files are checked against them, tests try each, and the table of
    recipes lists them. If left out, they are the words in ``codes``, or False and True.
    ``default``: PyTorch's own value. If left out, it is the first of ``values``, or False for a switch.
    ``stage``: when the setting is applied. If left out, it is ``COMPILE`` for a recipe that ``compiles``, ``STEP`` for
    one with a ``plan_field``, ``MODEL`` for one with ``calls``.
    ``plan_field``: the field of ``StepPlan`` that takes the value; ``apply`` sets it if it is not overridden. The
    exported Python file has the field in its plan.
    ``compiles``: every value but the default compiles the model. Such a recipe is ``expensive``, it is not tried on a
    machine that cannot compile, and its gains are relative to compiling alone.
    ``usual``: values that many workloads gain from. The search tries all of them together, before all others.
    ``phases``: the only phases of a step that the recipe can shorten. They limit its gain, so the search skips the
    recipe if that gain would be within the noise. Empty means no limit.
    ``saves``: by phase, the share of its time that the recipe usually saves; gives the gain once phases are timed.
    ``here``: by value, why it may help on this workload, with facts in braces (``{workload.parameters:,}``).
    ``codes``: the code by value. ``shown``: the code of the other values, with ``{value}`` in place of the value. The
    default's code is a comment if neither has it. With the stage ``GLOBAL`` or ``MODEL``, ``apply`` runs the code.
    ``calls``: functions of this project that all values but the default call: the module (see ``code_of``) and the
    call, with ``{value}`` in place of the value. A trial calls them; the code shows the functions and the calls.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    key: ClassVar[str]
    default: ClassVar[Value]
    values: ClassVar[tuple[Value, ...] | WholeNumbers] = ()
    plan_field: ClassVar[str] = ""
    compiles: ClassVar[bool] = False
    modes: ClassVar[frozenset[Mode]] = BOTH_MODES
    devices: ClassVar[frozenset[str]] = frozenset(DEVICES)
    attacks: ClassVar[frozenset[Bottleneck]] = frozenset()  # the bottlenecks that the recipe reduces
    numerics: ClassVar[Numerics]
    numerics_by: ClassVar[Mapping[Value, Numerics]] = {}  # the numerics of values that differ from ``numerics``
    _numerics_in: ClassVar[Mapping[Mode, Numerics]] = {}
    stage: ClassVar[Stage]
    order: ClassVar[int] = 0  # within a stage, lower numbers are applied first (layers get a type, then are quantized)
    package: ClassVar[str] = ""  # an optional package that the recipe needs; the extra of the same name installs it
    ladder: ClassVar[bool] = False  # the values are tried in order until one is no better than the ones before
    spares: ClassVar[frozenset[str]] = frozenset()  # recipes that the usual stack leaves out if it has this one, by id
    expensive: ClassVar[bool] = False  # a trial may take tens of seconds; the search tries it on top of the stack
    habit: ClassVar[bool] = False  # the recipe measures the cost of a common mistake; most loops do not make it
    times_kernels: ClassVar[bool] = False  # libraries time kernels in the first steps, so nothing else may run then
    over_ranks: ClassVar[bool] = False  # on several GPUs it is tried again, even if one GPU gained from it
    saves_memory: ClassVar[bool] = False  # meant to lower the peak: tried first if memory is the objective
    inside_step: ClassVar[bool] = False  # it changes the inside of a step, so it cannot change a step the user wrote
    usual: ClassVar[frozenset[Value]] = frozenset()
    phases: ClassVar[frozenset[Phase]] = frozenset()
    gain: ClassVar[float | None] = None  # the usual speed-up factor; None is 1.05 for usual values, 1.02 for others
    gains: ClassVar[Mapping[Value, float]] = {}  # the usual speed-up factors of values that differ from ``gain``
    saves: ClassVar[Mapping[Phase, float]] = {}
    costs: ClassVar[Mapping[Value, float]] = {}  # durations of compilation, relative to the usual duration
    here: ClassVar[Mapping[Value, str]] = {}
    roundings: ClassVar[Mapping[Value, float]] = {}  # unit round-offs that values bring in (bfloat16: 2**-8)
    excludes: ClassVar[Mapping[str, str]] = {}  # keys of settings that allow only the default, with the reason
    conflicts: ClassVar[tuple[tuple[Value, str, Value, str], ...]] = ()  # a value, another setting, and the reason
    implies: ClassVar[Mapping[Value, Values]] = {}  # settings that a value brings along if they are not set themselves
    codes: ClassVar[Mapping[Value, str]] = {}
    shown: ClassVar[str] = ""
    calls: ClassVar[tuple[tuple[str, str], ...]] = ()

    def __init_subclass__(cls) -> None:
        if "key" in vars(cls):
            module = sys.modules[cls.__module__]
            text = _card_of(module)
            cls.id = vars(cls).get("id", Path(getattr(module, "__file__", "")).stem)
            cls.title = vars(cls).get("title", text.partition("\n")[0].rstrip("."))
            if not hasattr(cls, "numerics"):
                said = section_of(text, "Numerics")
                cls.numerics = next((each for each in Numerics if said.startswith(each)), Numerics.CLOSE)
                cls._numerics_in = {
                    mode: each for mode, loop in _LOOPS.items() for each in Numerics if f"{each} in {loop}" in said
                }
            if not hasattr(cls, "stage") and (cls.plan_field or cls.compiles or cls.calls):
                cls.stage = Stage.COMPILE if cls.compiles else Stage.STEP if cls.plan_field else Stage.MODEL
            if not cls.values and any(isinstance(value, str) for value in cls.codes):
                cls.values = tuple(cls.codes)
            if not hasattr(cls, "default"):
                cls.default = next(iter(cls.values), False)
            if isinstance(cls.default, bool) and not cls.values:
                cls.values = (cls.default, not cls.default)
        if cls.compiles:
            cls.expensive = True
            NOT_COMPILED[cls.key] = cls.default

    def candidates(self, facts: Facts) -> Proposal:
        """The values worth trying here, or the reason that there are none. If not overridden: all but the default.

        ``facts.profile`` is None at first, then perhaps only the phases; ``facts.instrumented`` is None until the
        instrumented pass. Until then a recipe proposes values by the workload's structure, or returns
        ``NEEDS_PROFILE`` and is asked again after the pass. The present value may be among the values.
        """
        return [value for value in self.values if value != self.default]

    def apply(self, workload: Components, value: Value) -> None:
        """Put ``value`` into effect on the objects, the plan, or the process's global flags."""
        if self.plan_field:
            field: dict[str, Any] = {self.plan_field: value}
            workload.plan = replace(workload.plan, **field)
        elif self.calls:
            names = {"model": workload.model}
            for module, call in self.calls if value != self.default else ():
                names |= names_in(module)
                exec(call.replace("{value}", str(value)), names)  # noqa: S102 - our own code
        elif self.stage in (Stage.GLOBAL, Stage.MODEL):
            self.run_code(workload, value)
        elif self.stage is not Stage.ENVIRONMENT:
            raise NotImplementedError(f"the recipe {self.id} has no apply")

    def run_code(self, workload: Components, value: Value) -> None:
        """Run the code that is shown for ``value``, with ``torch`` and the workload's ``model`` and ``optimizer``."""
        names = {"torch": import_module("torch"), "model": workload.model, "optimizer": workload.optimizer}
        exec(self.code(value), names)  # noqa: S102 - our own code
        workload.model, workload.optimizer = names["model"], names["optimizer"]

    def code(self, value: Value) -> str:
        """Python that does the same as ``apply``, with the names ``model``, ``optimizer``, ``loader`` and ``device``.

        The app shows the lines, and the exported Python file contains them: imports and definitions at its top, the
        others in ``prepare``. For a change inside a step, the file's template has the code, chosen by ``plan_field``;
        the shown code may then use ``inputs``, ``targets``, ``loss_fn`` and ``batch`` too.
        :func:`advisor.recipe.code_of` adds the definitions of our functions.
        """
        if value in self.codes:
            return self.codes[value]
        if self.shown:
            return self.shown.replace("{value}", str(value))
        if value == self.default:
            return f"# {self.key}: {text_of(value)}, the default\n"  # a trial may replace the user's value by it
        if self.calls:
            return "".join(code_of(module, call.replace("{value}", str(value))) for module, call in self.calls)
        assert self.stage is Stage.ENVIRONMENT, "the catalogue takes no other recipe without code"
        variables = " ".join(f"{name}={text}" for name, text in self.environment(value).items())
        return f"# start the script with {variables}\n"

    def accepts(self, value: Value) -> bool:
        """Whether ``value`` is a possible value of this setting (checked when a settings file is read)."""
        if isinstance(self.values, WholeNumbers):
            return value in self.values
        return any(type(value) is type(one) and value == one for one in self.values)

    def is_usual(self, value: Value, mode: Mode) -> bool:
        """Whether ``value`` is a usual value in this kind of loop."""
        return value in self.usual

    def suits(self, facts: Facts, value: Value) -> bool:
        """Whether an expert would choose ``value`` on this machine, although it is not in ``usual``."""
        return False

    def expected_gain(self, facts: Facts, value: Value) -> float:
        """The speed-up factor that a value usually gives on such a workload when it is added to a good stack.

        1.0 means that no gain is expected, less than 1 that the value costs speed. ``facts.workload.current`` holds
        the settings that are on as well: the user's or the stack's.
        The caller limits the factor by the profile (``advisor.figures.roof.upper_bound``).
        """
        if value == self.default:
            return 1.0
        gain = self.gain_for(facts, value)
        if self.compiles and not is_compiled(facts, but=self.key):
            # 1.35x over a captured stack and 1.4x on an encoder on an H200, 0.92x to 1.64x on a CPU
            # (tests/gpu/RESULTS.md).
            gain *= 1.3 if facts.on_cuda else 1.15
        return gain

    def gain_for(self, facts: Facts, value: Value) -> float:
        """The expected factor of a value that is not the default. Override it if it depends on facts."""
        if value in self.gains:
            return self.gains[value]
        if self.saves and facts.profile is not None:
            saved = sum(share * facts.profile.share(phase) for phase, share in self.saves.items())
            return max(_GAIN_OF_OTHERS, gain_from(saved))
        if self.gain is not None:
            return self.gain
        return _GAIN_OF_USUAL if self.is_usual(value, facts.workload.mode) else _GAIN_OF_OTHERS

    @property
    def keeps_code(self) -> bool:
        """Whether a value of this recipe changes no kernel, so that code compiled without it can be used with it.

        Global flags count as changing kernels, since the compiler's cache key has some of them (the precision of
        products, determinism, the number of threads). A recipe with another flag overrides this.
        """
        return self.stage in (Stage.OPTIMIZER, Stage.DATA)

    def conflict(self, value: Value, settings: Values) -> str | None:
        """The reason that ``value`` conflicts with these other settings, or None."""
        for own, key, other, reason in self.conflicts:
            if value == own and settings.get(key) == other:
                return reason
        if value == self.default:
            return None
        return next((reason for key, reason in self.excludes.items() if settings.get(key, False) not in _OFF), None)

    def numerics_of(self, value: Value, mode: Mode) -> Numerics:
        """The numerics class of a value: its own, else the card's for this mode, else the card's for all modes."""
        return self.numerics_by.get(value) or self._numerics_in.get(mode, self.numerics)

    def environment(self, value: Value) -> Mapping[str, str]:
        """Environment variables to set before Python starts, for a recipe of the stage ``ENVIRONMENT``."""
        return {}

    def why(self, facts: Facts, value: Value) -> str:
        """One sentence that says why this value may help on this workload."""
        if value in self.here and not isinstance(proposed := self.candidates(facts), Skip) and value in proposed:
            return self.here[value].format(workload=facts.workload, profile=facts.profile)
        if found := [finding for finding in facts.findings if finding.recipe == self.id]:
            return f"Found at {found[0].place}{f' and {len(found) - 1} more' if found[1:] else ''}: {found[0].what}"
        profile = facts.profile
        if profile is not None and profile.bottleneck in self.attacks:
            return f"The step is {profile.bottleneck.kind_of_step}: {profile.evidence}"
        return section_of(card(self), "Why it helps").partition("\n\n")[0].replace("\n", " ")


_BFLOAT16_OF_CPUS = frozenset({"avx512_bf16", "amx_bf16", "asimdbf16", "bf16"})
_UNITS = {
    "float16": "half-precision tensor cores",
    "bfloat16": "bfloat16 units",
    "tf32": "TensorFloat-32",
    "float8": "float8 tensor cores",
}


def lacks_units(facts: Facts, number_type: str, units: str = "") -> Skip | None:
    """Skip if the device has no matrix units for a type; ``units`` is the name of the units."""
    workload, named = facts.workload, units or _UNITS[number_type]
    if not facts.on_cuda:
        fast = number_type == "bfloat16" and _BFLOAT16_OF_CPUS & set(facts.hardware.host.cpu_features)
        return None if fast else Skip(f"this CPU has no fast {number_type} units (AVX-512 BF16 or AMX)")
    if workload.multiplies_in(number_type):
        return None
    capability, needed = workload.capability or (0, 0), TENSOR_CORES_SINCE[number_type]
    have, since = (".".join(map(str, numbers)) for numbers in (capability, needed))
    return Skip(f"compute capability {have} has no {named} ({since} and later have)")


def is_host_bound(facts: Facts) -> bool:
    """Whether a GPU often waits for the host in a step: by the profile, else by the size of the model."""
    if not facts.on_cuda or facts.current("step.cuda_graph", False):
        return False
    profile = facts.profile
    if profile is None:
        return facts.workload.parameters < _FEW_PARAMETERS
    if profile.device_busy_share is not None:
        return profile.device_busy_share < _BUSY_DEVICE
    return profile.bottleneck is Bottleneck.LAUNCH


def gain_from(share: float) -> float:
    """The speed-up factor of a step whose time becomes shorter by this share (0 to 1)."""
    return 1 / (1 - min(max(share, 0.0), _MOST_OF_A_STEP))


def runs_in_half(facts: Facts) -> bool:
    """Whether the model already computes in half precision, by autocast or by the type of its weights."""
    weights = {facts.current("precision.weights", "float32"), *facts.workload.parameter_dtypes[:1]}
    return facts.current("precision.autocast", "none") != "none" or bool(weights & {"bfloat16", "float16"})


def is_compiled(facts: Facts, *, but: str = "") -> bool:
    """Whether the present settings compile the model; the setting with the key ``but`` does not count."""
    return any(facts.current(key, off) != off for key, off in NOT_COMPILED.items() if key != but)


def unless_computed(facts: Facts, *families: str, reason: str) -> Skip | None:
    """Skip with ``reason`` if a step computes none of these families (see ``Facts.computes``).

    Before the instrumented pass, only the model's modules are known, and the reason says so.
    """
    if facts.computes(*families):
        return None
    return Skip(reason if facts.instrumented else f"{reason}, as far as is known before profiling")


def without_package(name: str, at_least: tuple[int, int]) -> Skip | None:
    """Skip a recipe if its optional package is missing or too old; None if the recipe can run.

    The package is not imported. This project must have an extra of the same name that installs it.
    """
    from importlib.metadata import PackageNotFoundError, version  # late: its import takes as long as all recipes

    install = f"`pip install 'perf-advisor[{name}]'`"
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Skip(f"{name} is not installed; {install} adds it")
    if _numbers(installed) < at_least:
        wanted = ".".join(map(str, at_least))
        return Skip(f"{name} {installed} is too old ({wanted} or later is needed); {install} renews it")
    return None


@functools.cache  # the search asks at each move, and each look-up of the version parses a file
def torch_is_older(than: tuple[int, int]) -> bool:
    """Whether the installed PyTorch is older than this version. PyTorch is not imported."""
    from importlib.metadata import version

    return _numbers(version("torch")) < than


def _numbers(installed: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", installed)[:2])


def card(recipe: Recipe) -> str:
    """The recipe's module docstring with underlined headings, as the app and ``perf-advisor recipes ID`` show it."""
    return _card_of(sys.modules[type(recipe).__module__])


def _card_of(module: ModuleType) -> str:
    text = module.__doc__ or ast.get_docstring(ast.parse(inspect.getsource(module))) or ""  # `python -OO` keeps none
    return _HEADING.sub(lambda found: f"{found[1]}\n{'-' * len(found[1])}\n", text.strip())


def section_of(text: str, heading: str) -> str:
    """The text under one heading of a card, or an empty string."""
    match = re.search(rf"^{re.escape(heading)}\n-+\n(.*?)(?=^[^\n]+\n-+\n|\Z)", text, re.M | re.S)
    return match.group(1).strip() if match else ""
