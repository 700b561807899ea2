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
# Before the text with a colon, or on a line of its own, perhaps underlined.
_HEADING = re.compile(rf"^({'|'.join(HEADINGS)})(?:: +|:?\n(?:-+\n)?)", re.M)
BOTH_MODES = frozenset({Mode.TRAIN, Mode.INFER})
TRAINING = frozenset({Mode.TRAIN})
INFERENCE = frozenset({Mode.INFER})
CUDA = frozenset({"cuda"})
CPU = frozenset({"cpu"})
NEEDS_PROFILE = Skip("known only after the step was profiled")

# Expected speed-up of a value that no figure is known for. Factors; what most rows of tests/gpu/RESULTS.md lie around.
_GAIN_OF_USUAL = 1.05
_GAIN_OF_OTHERS = 1.02
# A step whose device computes for less than this share of the time waits for the host. Unitless; the share below which
# capturing the step gave more than any faster kernel (tests/gpu/RESULTS.md, "mlp12", "small_resnet18").
_BUSY_DEVICE = 0.6
# Without a profile, a model of fewer parameters is taken to be host-bound on a GPU. mlp12 has 3 million, ResNet-50 25.
_FEW_PARAMETERS = 5_000_000
# Largest share of a step that a gain is computed from. Unitless; it bounds the gain to ten times.
_MOST_OF_A_STEP = 0.9

_LOOPS = {Mode.TRAIN: "training", Mode.INFER: "inference"}
# Values that switch a setting off.
_OFF = ("none", "default", False)
# The keys of all recipes with ``compiles`` that have been imported, and their values that do not compile.
NOT_COMPILED: dict[str, Value] = {}
# The modes of torch.compile with CUDA graphs of their own, each with the same mode without graphs.
MODES_WITH_GRAPHS: Mapping[Value, Value] = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}


class Stage(IntEnum):
    """The stage of a trial at which a setting is applied; lower stages first."""

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
    data: Any  # a DataLoader, one batch, a callable ``batch_size -> batch``, or None when only the model is known
    plan: StepPlan
    batch_size: int | None = None
    own_step: Any = None  # a step that the user wrote; None where the step is made of these parts

    @property
    def has_loader(self) -> bool:
        """Whether the data comes from a DataLoader (looked up without importing torch)."""
        loaders = sys.modules.get("torch.utils.data")
        return loaders is not None and isinstance(self.data, loaders.DataLoader)


@dataclass(frozen=True, slots=True)
class WholeNumbers:
    """The values of a numeric setting: whole numbers from ``least`` to a million. An iteration gives ``such_as``."""

    least: int
    such_as: tuple[int, ...]

    def __iter__(self) -> Iterator[Value]:
        return iter(self.such_as)

    def __contains__(self, value: Value) -> bool:
        return type(value) is int and self.least <= value <= 1_000_000


class Recipe:
    """One optimization. Class attributes describe it; the module docstring explains it.

    A class with a ``key`` is a recipe, one without is a base of others. Its ``id`` is its file's name, its ``title``
    the first line of the card and its ``numerics`` the first word of that section, unless it says others.
    ``values``: all that the setting may be; the words in ``codes`` unless it says others, and a switch need not say it.
    Settings files are checked against them, tests try each, and the table of recipes lists them. ``default``: PyTorch's
    own value; the first of ``values``, and False for a switch, unless it says another.
    ``stage``: when it is applied; ``COMPILE`` where it ``compiles``, ``STEP`` where it has a ``plan_field``, ``MODEL``
    where it has ``calls``, unless it says another.
    ``plan_field``: the field of ``StepPlan`` that a value is put into. ``apply`` does that unless it is overridden, and
    the exported Python file says it in its plan.
    ``compiles``: every value but the default has the model compiled. It is ``expensive``, it is not tried where nothing
    can be compiled, and its gains are those over compiling alone.
    ``usual``: values that many workloads gain from; the search tries them before all others, at once with one another.
    ``phases``: the phases of a step that it can shorten, when it touches no other: they bound what it can gain, and the
    search passes over what cannot clear the noise. Empty means no such bound.
    ``saves``: the share of a phase's time that it usually saves, by phase: the gain once the phases have been timed.
    ``here``: for single values why they may help on this workload, with figures of the facts' workload and profile,
    such as ``{workload.parameters:,}``.
    ``codes``: the code of single values, where nothing but the value decides it. ``shown``: that of all others, with
    ``{value}`` in the value's place. That of the default is a comment unless one of the two says it. A recipe of the
    stage ``GLOBAL`` or ``MODEL`` need not write ``apply``: its code is run.
    ``calls``: the functions of this project that all values but the default call, each by its module (``code_of``) and
    the call, with ``{value}`` in the value's place. A trial calls them, and the code shows them with their calls.
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
    attacks: ClassVar[frozenset[Bottleneck]] = frozenset()  # limits of a step that it works against
    numerics: ClassVar[Numerics]
    numerics_by: ClassVar[Mapping[Value, Numerics]] = {}  # those of single values
    _numerics_in: ClassVar[Mapping[Mode, Numerics]] = {}
    stage: ClassVar[Stage]
    order: ClassVar[int] = 0  # within a stage, lower numbers first: layers take their type before they are quantized
    package: ClassVar[str] = ""  # an optional one that it needs; an extra of this project by the same name brings it
    ladder: ClassVar[bool] = False  # the values are tried in order until one is no better than those before it
    spares: ClassVar[frozenset[str]] = frozenset()  # ids of recipes that the usual stack leaves out beside it
    expensive: ClassVar[bool] = False  # a trial may take tens of seconds; the search tries it on top of the stack
    habit: ClassVar[bool] = False  # it prices a common mistake; most loops have the good value already
    times_kernels: ClassVar[bool] = False  # libraries time kernels in the first steps: nothing else may run then
    over_ranks: ClassVar[bool] = False  # beside what one GPU gained of it, it is tried again over several
    saves_memory: ClassVar[bool] = False  # it is meant to lower the peak: tried first where memory is the objective
    inside_step: ClassVar[bool] = False  # it changes what a step of the user's own hides
    usual: ClassVar[frozenset[Value]] = frozenset()
    phases: ClassVar[frozenset[Phase]] = frozenset()
    gain: ClassVar[float | None] = None  # the usual speed-up factor; None is 1.05 for usual values, 1.02 for others
    gains: ClassVar[Mapping[Value, float]] = {}  # those of single values
    saves: ClassVar[Mapping[Phase, float]] = {}
    costs: ClassVar[Mapping[Value, float]] = {}  # durations of expensive trials, relative to the usual one
    here: ClassVar[Mapping[Value, str]] = {}
    roundings: ClassVar[Mapping[Value, float]] = {}  # unit round-offs that values bring in (bfloat16: 2**-8)
    excludes: ClassVar[Mapping[str, str]] = {}  # keys of settings that exclude all but the default, with the reason
    conflicts: ClassVar[tuple[tuple[Value, str, Value, str], ...]] = ()  # a value, another setting, and the reason
    implies: ClassVar[Mapping[Value, Values]] = {}  # settings that come with a value where they are not set themselves
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
        """The values worth trying here, or the reason why there are none: all but the default, unless it is overridden.

        ``facts.profile`` is None at first, then perhaps the phases alone; ``facts.instrumented`` is None until the
        instrumented pass. A recipe then proposes what the workload's structure alone makes sensible; one that needs
        that pass skips with ``NEEDS_PROFILE`` and is asked again later. The present value may be among the values.
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
        """Run the code of ``value`` as it is shown, with ``torch`` and a workload's ``model`` and ``optimizer``."""
        names = {"torch": import_module("torch"), "model": workload.model, "optimizer": workload.optimizer}
        exec(self.code(value), names)  # noqa: S102 - our own code
        workload.model, workload.optimizer = names["model"], names["optimizer"]

    def code(self, value: Value) -> str:
        """The few lines of Python that do the same, in terms of ``model``, ``optimizer``, ``loader`` and ``device``.

        The app shows them and the exported Python file contains them: imports and definitions go to its top, the rest
        into ``prepare``. What happens inside a step has its place in the file's template, by the ``plan_field``; such
        code speaks of ``inputs``, ``targets``, ``loss_fn`` and ``batch`` too. Functions come with
        :func:`advisor.recipe.code_of`.
        """
        if value in self.codes:
            return self.codes[value]
        if self.shown:
            return self.shown.replace("{value}", str(value))
        if value == self.default:
            return f"# {self.key}: {text_of(value)}, the default\n"  # it may be measured instead of the user's
        if self.calls:
            return "".join(code_of(module, call.replace("{value}", str(value))) for module, call in self.calls)
        assert self.stage is Stage.ENVIRONMENT, "the catalogue takes no other recipe without code"
        variables = " ".join(f"{name}={text}" for name, text in self.environment(value).items())
        return f"# start the script with {variables}\n"

    def accepts(self, value: Value) -> bool:
        """Whether ``value`` can be a value of this setting at all (checked when a settings file is read)."""
        if isinstance(self.values, WholeNumbers):
            return value in self.values
        return any(type(value) is type(one) and value == one for one in self.values)

    def is_usual(self, value: Value, mode: Mode) -> bool:
        """Whether ``value`` is one of the usual ones in this kind of loop."""
        return value in self.usual

    def suits(self, facts: Facts, value: Value) -> bool:
        """Whether an expert would choose ``value`` on this machine, although it is not in ``usual``."""
        return False

    def expected_gain(self, facts: Facts, value: Value) -> float:
        """The speed-up factor that a value usually gives on such a workload when it joins a good stack.

        1.0 means that none is expected, and less than 1 that the value costs speed. ``facts.workload.current`` holds
        the settings that the value joins: the user's, or those of the stack.
        The caller bounds the figure by what the profile permits (``advisor.figures.roof.upper_bound``).
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
        """The same for a value that is not the default. Override it where facts decide."""
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
        """Whether code that was compiled without a value of this recipe can be used with it: no kernel changes.

        A global flag may be part of the compiler's cache key (the precision of products, determinism, the number of
        threads): a recipe whose flag is not says so itself.
        """
        return self.stage in (Stage.OPTIMIZER, Stage.DATA)

    def conflict(self, value: Value, settings: Values) -> str | None:
        """The conflict of ``value`` with these other settings, or None."""
        for own, key, other, reason in self.conflicts:
            if value == own and settings.get(key) == other:
                return reason
        if value == self.default:
            return None
        return next((reason for key, reason in self.excludes.items() if settings.get(key, False) not in _OFF), None)

    def numerics_of(self, value: Value, mode: Mode) -> Numerics:
        """The numerics class of one value: its own, or the card's for all, or as in "changed in training"."""
        return self.numerics_by.get(value) or self._numerics_in.get(mode, self.numerics)

    def environment(self, value: Value) -> Mapping[str, str]:
        """Variables that must be set before Python starts, for a recipe of the stage ``ENVIRONMENT``."""
        return {}

    def why(self, facts: Facts, value: Value) -> str:
        """One sentence: why this may help on this workload."""
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
    """Skip where the device has no matrix units for a type; ``units`` is what they are called."""
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
    """Whether a GPU waits for the host in most of a step: by the profile, else by the size of the model."""
    if not facts.on_cuda or facts.current("step.cuda_graph", False):
        return False
    profile = facts.profile
    if profile is None:
        return facts.workload.parameters < _FEW_PARAMETERS
    if profile.device_busy_share is not None:
        return profile.device_busy_share < _BUSY_DEVICE
    return profile.bottleneck is Bottleneck.LAUNCH


def gain_from(share: float) -> float:
    """The speed-up factor of a step that loses this share (0 to 1) of its time."""
    return 1 / (1 - min(max(share, 0.0), _MOST_OF_A_STEP))


def runs_in_half(facts: Facts) -> bool:
    """Whether the model computes in half precision already: by autocast, or by the type of its weights."""
    weights = {facts.current("precision.weights", "float32"), *facts.workload.parameter_dtypes[:1]}
    return facts.current("precision.autocast", "none") != "none" or bool(weights & {"bfloat16", "float16"})


def is_compiled(facts: Facts, *, but: str = "") -> bool:
    """Whether the settings at hand, without the one with the key ``but``, have the model compiled."""
    return any(facts.current(key, off) != off for key, off in NOT_COMPILED.items() if key != but)


def unless_computed(facts: Facts, *families: str, reason: str) -> Skip | None:
    """Skip with ``reason`` when a step computes none of these (see ``Facts.computes``).

    Before the instrumented pass only the model's modules are known, and the reason says so.
    """
    if facts.computes(*families):
        return None
    return Skip(reason if facts.instrumented else f"{reason}, as far as is known before profiling")


def without_package(name: str, at_least: tuple[int, int]) -> Skip | None:
    """A reason to skip a recipe whose optional package is missing or too old; None when it can run.

    The package is not imported. An extra of this project by the same name is expected to bring it.
    """
    from importlib.metadata import PackageNotFoundError, version  # late: it takes as long to load as all recipes

    install = f"`pip install 'perf-advisor[{name}]'`"
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Skip(f"{name} is not installed; {install} adds it")
    if _numbers(installed) < at_least:
        wanted = ".".join(map(str, at_least))
        return Skip(f"{name} {installed} is too old ({wanted} or later is needed); {install} renews it")
    return None


@functools.cache  # the search asks about it at each move, and finding the version parses a file
def torch_is_older(than: tuple[int, int]) -> bool:
    """Whether the installed PyTorch is of an earlier version than this one. It is not imported."""
    from importlib.metadata import version

    return _numbers(version("torch")) < than


def _numbers(installed: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", installed)[:2])


def card(recipe: Recipe) -> str:
    """The recipe's module docstring, its headings underlined: the app and ``perf-advisor recipes ID`` show it."""
    return _card_of(sys.modules[type(recipe).__module__])


def _card_of(module: ModuleType) -> str:
    text = module.__doc__ or ast.get_docstring(ast.parse(inspect.getsource(module))) or ""  # `python -OO` keeps none
    return _HEADING.sub(lambda found: f"{found[1]}\n{'-' * len(found[1])}\n", text.strip())


def section_of(text: str, heading: str) -> str:
    """The text under one heading of a card, or an empty string."""
    match = re.search(rf"^{re.escape(heading)}\n-+\n(.*?)(?=^[^\n]+\n-+\n|\Z)", text, re.M | re.S)
    return match.group(1).strip() if match else ""
