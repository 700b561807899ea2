"""Write a session's settings into the user's own files, at the places that were seen to run."""

import ast
import contextlib
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from advisor.errors import UsageError
from advisor.figures.formatting import format_setting
from advisor.files.paths import is_file
from advisor.python.edits import Edits, Start, edited, start_of, what_it_sets
from advisor.python.file import parts_of, with_functions
from advisor.python.step import TEMPLATE, StepText, WrittenFor
from advisor.recipe import Recipe, Stage
from advisor.recipe.catalog import Catalog
from advisor.records import BatchForm, Finding, Mode, Place, Value, WorkloadFacts

_MARK = "# perf-advisor:"
_WIDTH = 100  # columns of the longest comment line
_MOST_LINES = 40  # lines of code for one setting, since a person reviews the change
_AROUND_FORWARD = ("autocast", "create_on_device", "grad_mode")
_TOO_MUCH = "it takes more code than a few lines; advisor.load applies it from a settings file"
_NO_PLACE = {
    "model": "no statement was seen that makes the model",
    "optimizer": "no call was seen that makes the optimizer",
    "loader": "your code does not make the loop's DataLoader: set this where your library makes it",
    "forward": "the forward pass and its loss were not seen in one block of statements",
    "copy": "the batch must be converted when it is copied to the device, but no such statement was seen",
}
_IMPLEMENTATIONS = {
    "fused": {"fused": "True", "foreach": ""},
    "foreach": {"foreach": "True", "fused": ""},
    "for-loop": {"foreach": "False", "fused": ""},
}


@dataclass(frozen=True, slots=True)
class Patched:
    """The user's files with the settings: the new content by path, and the left-out settings with the reasons."""

    files: dict[str, bytes]
    left_out: tuple[str, ...]


def patched_files(
    catalog: Catalog,
    settings: Mapping[str, Value],
    facts: WorkloadFacts,
    script: str,
    *,
    measured: str = "",
    evaluations: Iterable[Finding] = (),
    arguments: Mapping[str, Mapping[str, str]] | None = None,
) -> Patched:
    """The files of a script with settings written into them. Raises UsageError if a file cannot be read or parsed.

    ``evaluations`` are validations that were found to record gradients. ``arguments`` are new arguments of a trainer.
    """
    patch = _Patch(facts, script)
    patch.files[script].header = f"# Settings that perf-advisor measured{measured}"
    for one in evaluations:
        patch.files[str(Path(script).parent / one.file)].evaluations.add(one.line)
    for given in (arguments or {}).values():
        patch.give("arguments", given)
    others = {key: value for key, value in settings.items() if key not in (arguments or {})}
    patch.write([pair for pair in catalog.in_order(others) if facts.device_type in pair[0].devices])
    return patch.patched()


class _NotHereError(Exception):
    """The reason why a setting cannot be written into the files."""


@dataclass(slots=True)
class _Patch:
    facts: WorkloadFacts
    script: str
    files: dict[str, Edits] = field(default_factory=lambda: defaultdict(Edits))
    left_out: dict[str, list[str]] = field(default_factory=dict)  # the reason -> its settings

    def write(self, settings: list[tuple[Recipe, Value]]) -> None:
        """Write all settings at their places."""
        written_for = WrittenFor(self.facts.loss_form, facts=self.facts)
        step = StepText.of(settings, self.facts.mode, self.facts.device_type, written_for)
        for recipe, value in settings:
            if self.facts.mode in recipe.modes:
                with self._or_left_out(format_setting(recipe.key, value)):
                    self._write(recipe, value)
        if around := [one for one in settings if one[0].plan_field in _AROUND_FORWARD]:
            with self._or_left_out(*(format_setting(recipe.key, value) for recipe, value in around)):
                self._around_forward(step)
        if any(recipe.compiles for recipe, _ in settings):
            with self._or_left_out(format_setting("compile.mode", step.plan.compiles_with)):
                self._compiled(step)

    @contextlib.contextmanager
    def _or_left_out(self, *settings: str) -> Iterator[None]:
        """Leave these settings out if the code in this context raises _NotHereError."""
        try:
            yield
        except _NotHereError as error:
            self.left_out.setdefault(str(error), []).extend(settings)

    def patched(self) -> Patched:
        """All changed files. Comments at the loop, or at the top of the script, say which settings are left out."""
        loops, reasons = self._places("loop", "above"), []
        for why, named in self.left_out.items():
            reasons.append(f"{', '.join(named)}: {why}")
            text = f"{_MARK} not here: {reasons[-1]}"  # it may hold commands, so words stay whole
            lines = textwrap.wrap(
                text, _WIDTH, subsequent_indent="#   ", break_long_words=False, break_on_hyphens=False
            )
            if loops:
                self.files[loops[0].file].before[start_of(loops[0])] += lines
            else:
                self.files[self.script].header += "".join(f"\n{line}" for line in lines)
        for place in loops[1:]:
            self.files[place.file].loop = start_of(place)
        changed, again = dict[str, bytes](), "Measure again, then export."
        for file, edits in self.files.items():
            try:
                before = Path(file).read_bytes()
                after, missing = edited(before, edits)
            except (OSError, ValueError) as error:
                raise UsageError(f"{file} cannot be changed: {error}.", again) from error
            if missing:
                raise UsageError(f"{file} has changed since it was measured (line {missing[0]}).", again)
            if after != before or file == self.script:
                changed[file] = after
        return Patched(changed, tuple(reasons))

    def _places(self, *kinds: str) -> list[Place]:
        return [place for place in self.facts.places if place.kind in kinds]

    # --- one setting ----------------------------------------------------------------------------------------------

    def _write(self, recipe: Recipe, value: Value) -> None:
        """Write a setting at its places. Raises _NotHereError if there is no place for it."""
        code = recipe.code(value)
        code = getattr(recipe, "imported", "") or code if code.count("\n") > _MOST_LINES else code
        match recipe.stage:
            case Stage.ENVIRONMENT:
                if "os.environ" not in code:
                    raise _NotHereError(code.strip("# \n"))
                self.files[self.script].first += [line for line in code.splitlines() if line.strip()]
            case Stage.GLOBAL:
                self._switches(code)
            case Stage.MODEL | Stage.OPTIMIZER | Stage.DATA if code.count("\n") > _MOST_LINES:
                raise _NotHereError(_TOO_MUCH)
            case _ if hasattr(recipe, "options"):
                self._loader(recipe, value, code)
            case Stage.OPTIMIZER if recipe.key == "optimizer.implementation" and self._places("optimizer call"):
                self.give("optimizer call", _IMPLEMENTATIONS[str(value)])
            case Stage.OPTIMIZER:
                self._beside("optimizer", code)
            case Stage.MODEL:
                self._model(recipe, value, code)
            case _ if recipe.plan_field == "non_blocking":
                self.give("copy", {"non_blocking": str(bool(value))})
            case _ if recipe.plan_field == "zero_grad" and value != "manual":
                self.give("clear", {"set_to_none": str(value == "none")})
            case _ if recipe.plan_field == "cuda_graph":
                self._captured(recipe, value)
            case _ if recipe.plan_field not in _AROUND_FORWARD and not recipe.compiles:
                raise _NotHereError(_TOO_MUCH)

    def _switches(self, code: str) -> None:
        """Add statements after the imports, or replace the script's statements that set the same."""
        for statement in ast.parse(code).body:
            text = ast.get_source_segment(code, statement) or ""
            what = what_it_sets(text)
            setting = re.compile(rf"^\s*{re.escape(what)}\b", re.MULTILINE)
            for file in [one for one, source in self._sources().items() if setting.search(source)] or [self.script]:
                self.files[file].switches[what] = text

    def _sources(self) -> dict[str, str]:
        """The source of each file that may be changed, by its path."""
        files = dict.fromkeys([self.script, *(place.file for place in self.facts.places)])
        return {file: Path(file).read_text(encoding="utf-8", errors="replace") for file in files if is_file(file)}

    def give(self, kind: str, given: Mapping[str, str], *, name: str | None = None) -> None:
        """Set arguments of the calls of a kind; with ``name``, only of the places with one of its words as name."""
        for place in self._places(kind):
            if name is None or place.name in name.split():
                position = place.line, place.column, place.end_line, place.end_column
                self.files[place.file].arguments[position].update(given)

    def _loader(self, recipe: Recipe, value: Value, code: str) -> None:
        calls, loader = self._places("loader call"), self.facts.loader
        options: Mapping[str, object] = recipe.options(value)  # type: ignore[attr-defined]
        if not calls and options and options.keys() <= {"num_workers", "pin_memory", "prefetch_factor"}:  # set later
            begins = bool(options.get("num_workers")) and not (loader and loader.num_workers)
            lines = ["prefetch_factor = 2"] * begins + [f"{name} = {one}" for name, one in options.items()]
            self._beside("loader read", "".join(f"loader.{line}\n" for line in lines))
        elif not calls or (value and not options):
            raise _NotHereError(_TOO_MUCH if calls else _NO_PLACE["loader"])
        device = f', "{self.facts.device_type}")'
        texts = {name: repr(one).replace(", device)", device) for name, one in options.items()}
        self.give("loader call", {name: text.replace(f"loader.{name}", "{}") for name, text in texts.items()})
        for place in calls:
            self._defined(place.file, code)
        if recipe.plan_field == "non_blocking" and value:
            self.give("copy", {"non_blocking": "True"})

    def _model(self, recipe: Recipe, value: Value, code: str) -> None:
        if recipe.plan_field == "memory_format" and value != "contiguous":
            dimensions = "5 5f" if str(value).endswith("3d") else "4 4f"
            self.give("copy", {"memory_format": f"torch.{value}"}, name=dimensions)
        if recipe.plan_field == "input_dtype" and value != recipe.default:
            if "float" in self.facts.batch_text and not any("f" in place.name for place in self._places("copy")):
                raise _NotHereError(_NO_PLACE["copy"])
            self.give("copy", {"dtype": f"torch.{value}"}, name="1f 2f 3f 4f 5f")
        self._beside("model", _before_optimizer(code, trains=self.facts.mode is Mode.TRAIN))

    def _beside(self, kind: str, code: str) -> None:
        """Add a recipe's code after the statements that make an object, or before those that read the loader."""
        what, _, read = kind.partition(" ")
        if not (places := self._places(kind)):
            raise _NotHereError(_NO_PLACE[what])
        for place in places:
            edits, name = self.files[place.file], place.name
            lines = [re.sub(rf"(?<![\w.]){what}\b", name, line) for line in self._defined(place.file, code)]
            there = (edits.before if read else edits.after)[start_of(place)]
            there += lines if there or not lines else [f"{_MARK} settings of {name}", *lines]

    def _defined(self, file: str, code: str) -> list[str]:
        """Add the imports and definitions of a recipe's code to a file. Return its other statements."""
        imports, definitions, statements = parts_of(code)
        edits = self.files[file]
        edits.imports += imports
        edits.definitions += [one for one in definitions if one not in edits.definitions]
        return statements

    # --- contexts and functions around the statements of a step ---------------------------------------------------

    def _around_forward(self, step: StepText) -> None:
        """Put the forward pass and the loss under ``with`` statements."""
        contexts = step.contexts(f'"{step.plan.device}"')
        if not contexts:
            if step.plan.autocast == "none" != self.facts.current.get("precision.autocast", "none"):
                raise _NotHereError("your loop is faster without its autocast: remove the autocast")
            return
        if step.plan.scales_gradients and self.facts.mode is Mode.TRAIN:
            raise _NotHereError("float16 needs a gradient scaler; tuning.train_step has one")
        places = self._places("forward")
        if problem := next((place.problem for place in places if "on one line" in place.problem), ""):
            raise _NotHereError(problem)
        if not places:
            into_loop = f"write this around the forward pass: with {', '.join(contexts)}:"
            raise _NotHereError(_NO_PLACE["forward"] if self._places("loop") else into_loop)
        for place in places:
            self.files[place.file].pieces[place].contexts += contexts

    def _compiled(self, step: StepText) -> None:
        """Compile the model after the statement that makes it, or with its loss in a function above the loop."""
        plan, arguments = step.plan, ", ".join(step.compiled_with())
        if plan.freezing:
            self._switches("torch._inductor.config.freezing = True\n")
            self.files[self.script].imports.append("import torch._inductor.config")
        mode, calls = self.facts.current.get("compile.mode", "none"), self._places("compile call")
        if calls and mode != "none":  # the script compiles the model, so its own call gets the mode
            whole = dict(one.split("=", 1) for one in step.compiled_with())
            default = {"mode": "None"} if "options" in whole else {} if mode == "default" else {"mode": '"default"'}
            as_whole = plan.compiles_with != "none" and plan.compile_scope in ("model", "with_loss")
            self.give(calls[0].kind, {**default, **whole} if as_whole else {"disable": "True"})
            if plan.compile_scope == "with_loss":
                raise _NotHereError("the script itself compiles the model; the loss stays outside")
            if as_whole:
                return
        if plan.compiles_with == "none":
            return
        if plan.compile_scope == "with_loss":
            with self._or_left_out("compile.scope: with_loss"):
                self._compiled_with_loss(arguments)
                return
        self._beside("model", step.compilation())

    def _compiled_with_loss(self, arguments: str) -> None:
        """Move the forward pass and the loss into a compiled function above the loop."""
        places, loops = self._places("forward"), self._places("loop")
        if len(places) != 1 or not loops:
            problem = "the loop has several forward passes" if places else _NO_PLACE["forward"]
        else:
            is_placed = _is_within(places[0], loops[0]) or self._function_around(places[0])
            problem = places[0].problem or ("" if is_placed else "the forward pass is in another method")
        if problem:
            raise _NotHereError(f"{problem}; the model is compiled without its loss")
        piece = self.files[places[0].file].pieces[places[0]]
        piece.above = self._function_around(places[0])
        piece.name = self._free_name("forward_and_loss")
        piece.decorator = f"@torch.compile({arguments})" if arguments else "@torch.compile"

    def _captured(self, recipe: Recipe, value: Value) -> None:
        """Move a step into a function above the loop, and capture it with a class from the template."""
        if not value:
            return
        if problem := self.facts.graph_problem:
            raise _NotHereError(problem)
        places, passes = self._places("step"), self._places("forward")
        if value is not True or not places:
            raise _NotHereError("no whole step was seen; tuning.train_step and own_step capture steps")
        (place,) = places
        written_for = WrittenFor("step", BatchForm("list"), self.facts, place=place)
        step = StepText.of([(recipe, value)], self.facts.mode, self.facts.device_type, written_for)
        edits = self.files[place.file]
        edits.definitions.append(step.written(TEMPLATE["CONSTANTS"]))
        edits.definitions += with_functions(step, [step.written(TEMPLATE["STEP"])])
        edits.pieces[passes[0]].contexts += []  # list it, so that it is changed before the step around it
        edits.pieces[place].above = self._function_around(place)
        edits.pieces[place].name = self._free_name("train_step")
        edits.pieces[place].wrapped = f"CapturedStep({{}}, {place.name})"

    def _function_around(self, place: Place) -> Start | None:
        """The start of the function around a place that the loop calls; None if the place is in no such function."""
        return next((start_of(one) for one in self._places("function") if _is_within(place, one)), None)

    def _free_name(self, name: str) -> str:
        return f"tuned_{name}" if any(re.search(rf"\b{name}\b", one) for one in self._sources().values()) else name


def _before_optimizer(code: str, *, trains: bool) -> str:
    """Replace conditions on the optimizer by their branch, for a place where the optimizer does not exist yet."""
    lines = code.splitlines()
    for one in reversed(ast.parse(code).body):
        if isinstance(one, ast.If) and "optimizer" in (test := ast.unparse(one.test)):
            block = one.body if trains and "state" not in test else one.orelse
            kept = lines[block[0].lineno - 1 : block[-1].end_lineno] if block else []
            lines[one.lineno - 1 : one.end_lineno] = textwrap.dedent("\n".join(kept)).splitlines()
    return "\n".join(lines)


def _is_within(place: Place, other: Place) -> bool:
    return place.file == other.file and other.line <= place.line <= other.end_line
