"""The Python file: settings as a module of plain PyTorch, written for one workload."""

import ast
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from advisor.errors import UsageError
from advisor.export.python_step import LINE, BatchText, StepText, call
from advisor.figures.formatting import format_setting
from advisor.recipe import Recipe, Stage, code_of
from advisor.recipe.catalog import Catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode, Value, WorkloadFacts
from advisor.version import __version__

OUTPUT_TARGET, OWN, STEP = "output_target", "own", "step"  # forms of a loss, as LossForm has them
_LOSSES = {
    OUTPUT_TARGET: ", loss_fn)  # loss_fn(output, target)",
    OWN: ")",
    "model_batch": ", loss_fn)  # loss_fn(model, batch)",
}
_IMPLEMENTATIONS = {
    "fused": "fused=True, foreach=False",
    "foreach": "fused=False, foreach=True",
    "for-loop": "fused=False, foreach=False",
    "default": "fused=None, foreach=None",
}
_IMPLEMENTATION = "optimizer.implementation"
_TRANSFORMS = "data.transforms_on_device"
_UPDATED_ONE_BY_ONE = frozenset({"RMSprop", "Adadelta"})  # such an update asks the device for the learning rate
_PARALLEL = "parallel."
_DDP_ARGUMENTS = frozenset({"gradient_as_bucket_view", "static_graph", "bucket_cap_mb", "find_unused_parameters"})
_BY_LOAD = "# Not in this file: {setting}. It takes more code; advisor.load applies it."
# Arguments of a DataLoader that are the names of their settings.
_LOADER = frozenset({"num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "batch_size"})


@dataclass(frozen=True, slots=True)
class WrittenFor:
    """The workload that a file is written for. ``loss_form`` and ``batch_form`` are those of the baseline's record.

    ``facts`` are None where they are not known; a loss then takes output and target. ``measured`` is the speed-up, and
    what it was measured with, for the first line.
    """

    loss_form: str = ""
    batch_form: str = ""
    facts: WorkloadFacts | None = None
    measured: str = ""


def python_source(
    catalog: Catalog,
    settings: Mapping[str, Value],
    mode: Mode | str,
    workload: WrittenFor = WrittenFor(),
) -> str:
    """Python source with ``prepare(model, optimizer, loader)`` and ``train_step``, ``infer_step`` or ``own_step``.

    Settings of the other mode, and of another device than the workload's, are left out. Raises UsageError for settings
    that no recipe knows or that cannot be combined.
    """
    catalog.check(settings)
    if conflict := catalog.conflict(settings):
        raise UsageError(f"these settings cannot be combined: {conflict}.", "Leave one of them out.")
    mode = Mode(mode)
    device = workload.facts.device_type if workload.facts else "cuda"
    fits = [pair for pair in catalog.in_order(settings) if mode in pair[0].modes and device in pair[0].devices]
    return _File(fits, mode, device, workload).text()


@dataclass(slots=True)
class _File:
    """A file as it is put together: what stands at its top, and the lines of ``prepare``."""

    settings: list[tuple[Recipe, Value]]
    mode: Mode
    device: str
    workload: WrittenFor
    environment: list[str] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    definitions: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The whole file."""
        step = self.step()
        body = [line for block in self.prepare(step) for line in block.splitlines()]
        if any("device" in line for line in body if not line.startswith("#")):
            body.insert(0, "device = next(model.parameters()).device")
        functions = [*self.definitions, *step.parts()]
        body = ['"""Return what the loop goes on with."""', *body, "return model, optimizer, loader"]
        prepare = "def prepare(model, optimizer=None, loader=None):\n" + textwrap.indent("\n".join(body), "    ")
        parts = [*functions, prepare, step.text()]
        used = {name for name in ("inspect", "torch") if any(f"{name}." in part for part in parts)}
        self.imports |= {f"import {name}" for name in used}
        return "\n\n\n".join(part.strip("\n") for part in [self.head(step), *parts]) + "\n"

    def head(self, step: StepText) -> str:
        """The docstring, the imports and the constants."""
        standard, others = _import_blocks(self.imports)
        if self.environment:
            others = "\n".join(f"{line}  # noqa: E402" for line in others.splitlines())
        blocks = [self.docstring(step), standard, *self.environment, others, step.constants()]
        return "\n\n".join(block.strip() for block in blocks if block)

    def docstring(self, step: StepText) -> str:
        """What was measured, the settings, and how the file is used."""
        found = ", ".join(format_setting(*pair) for pair in sorted((one.key, value) for one, value in self.settings))
        measured = f": {self.workload.measured}" if self.workload.measured else ""
        first = textwrap.fill(f"What perf-advisor {__version__} measured to be faster{measured}.", LINE)
        packages = sorted({recipe.package for recipe, value in self.settings if value != recipe.default} - {""})
        needs = f" Needs {' and '.join(packages)}." if packages else ""
        lines = [first, "", *textwrap.wrap(f"Settings: {found or 'none'}.{needs}", LINE), "", *_usage(step)]
        if "scaler" in step.words:
            lines += ["", "A checkpoint also needs step.scaler.state_dict()."]
        if "graph" in step.words:
            lines += ["", *_WHAT_A_GRAPH_REPEATS.splitlines()]
        text = "\n".join(lines).replace("\\", "\\\\").replace('"""', r"\"\"\"")
        return f'"""{text}\n"""'

    def step(self) -> StepText:
        """The step, by the settings that change how one runs."""
        values = self.by_key
        fields = {recipe.plan_field: value for recipe, value in self.settings if recipe.plan_field}
        if fields.get("memory_format") == "contiguous":
            del fields["memory_format"]
        plan = StepPlan(mode=self.mode, device=self.device, **{"grad_mode": "caller", **fields})  # type: ignore[arg-type]
        form = self.workload.loss_form or OUTPUT_TARGET
        usual = {STEP: "any nested"}.get(form, "pair" if self.mode is Mode.TRAIN else "tensor")
        optimizer = self.workload.facts.optimizer if self.workload.facts else None
        how = str(values.get(_IMPLEMENTATION, optimizer.implementation if optimizer else "default"))
        options = [_IMPLEMENTATIONS[how]] if _IMPLEMENTATION in values else []
        capturable = bool(optimizer and optimizer.builtin and optimizer.capturable)
        if optimizer and how == "for-loop" and optimizer.name in _UPDATED_ONE_BY_ONE:
            capturable = False
        return StepText(
            plan,
            form,
            BatchText(
                self.workload.batch_form or usual,
                converts=plan.converts_batches,
                waits=", non_blocking=True" if plan.non_blocking or plan.device_prefetch else "",
            ),
            captures_update=not plan.scales_gradients
            and (capturable or bool(optimizer and optimizer.name == "SGD" and how == "fused")),
            compiled_with=_compiler_arguments(plan),
            options=", ".join([*options, *(["capturable=True"] if capturable else [])]),
            clip_norm=self.workload.facts.clip_norm if self.workload.facts else None,
        )

    @property
    def by_key(self) -> dict[str, Value]:
        """The settings' values by their keys."""
        return {recipe.key: value for recipe, value in self.settings}

    # --- prepare ----------------------------------------------------------------------------------------------------

    def prepare(self, step: StepText) -> Iterator[str]:
        """The lines of ``prepare``, setting by setting in the order in which they are applied."""
        loader: dict[str, object] = {}
        for recipe, value in self.settings:
            if recipe.stage is Stage.ENVIRONMENT:
                self.environment.append(recipe.code(value).strip())
            elif recipe.key == _IMPLEMENTATION:
                continue
            elif recipe.key == _TRANSFORMS:
                yield from [_BY_LOAD.format(setting=format_setting(recipe.key, value))] if value else []
            elif recipe.stage is Stage.DATA and (options := _loader_options(recipe, value)):
                loader |= options
                if functions := getattr(recipe, "functions", lambda _: "")(value):
                    yield from self.of_code(functions)
            elif recipe.stage in (Stage.GLOBAL, Stage.MODEL, Stage.DATA, Stage.OPTIMIZER) and not recipe.compiles:
                yield from self.of_code(recipe.code(value))
            elif recipe.stage is Stage.STEP and not recipe.plan_field:
                yield f"# This is for you to put into the loop ({format_setting(recipe.key, value)}):"
                yield textwrap.indent(recipe.code(value).strip(), "#     ", lambda _: True)
        yield from self.optimizer(step)
        yield from self.loader(loader)
        yield from self.compiled(step)
        yield from self.spread(step)
        if step.plan.cuda_graph and "graph" not in step.words:
            yield _BY_LOAD.format(setting=format_setting("step.cuda_graph", step.plan.cuda_graph))
        if step.plan.device_prefetch:
            yield "loader = DeviceLoader(loader, device)"

    def of_code(self, code: str) -> Iterator[str]:
        """A recipe's own code; its imports and definitions go to the top of the file."""
        lines, done = code.splitlines(), 0
        for node in ast.parse(code).body:
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))]) - 1
            # What stands above a statement belongs to it.
            text = "\n".join(line for line in lines[done : node.end_lineno] if not line.startswith("# in the loop"))
            done = node.end_lineno or first
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imports.add("\n".join(lines[first:done]))
            elif isinstance(node, ast.FunctionDef | ast.ClassDef) or _is_constant(node):
                self.definitions += [text.strip("\n")] if text.strip("\n") not in self.definitions else []
            else:
                yield text.strip("\n")

    def optimizer(self, step: StepText) -> Iterator[str]:
        """How the optimizer updates; of a captured update, ``make_capturable`` says it."""
        values, plan = self.by_key, step.plan
        if self.mode is not Mode.TRAIN or step.words >= {"train", "inside"}:
            return
        options = [_IMPLEMENTATIONS[str(values[_IMPLEMENTATION])]] if _IMPLEMENTATION in values else []
        if plan.compile_optimizer:
            facts = self.workload.facts
            capturable = facts is None or facts.optimizer is None or facts.optimizer.capturable
            options += ["capturable=True"] if capturable and self.device == "cuda" else []
            options += ['lr=torch.tensor(float(group["lr"]), device=device)']
        if options:
            indent = "    " if step.kind == "own" else ""  # of two models, one may have no optimizer of its own
            yield from ["if optimizer is not None:"] if indent else []
            yield f"{indent}for group in optimizer.param_groups:"
            update = call("group.update", options, indent=8 + len(indent))
            yield textwrap.indent(update, f"    {indent}")
            yield f"{indent}optimizer.load_state_dict(optimizer.state_dict())  # moves the counts of earlier steps"

    def loader(self, options: dict[str, object]) -> Iterator[str]:
        """One loader for all settings of it."""
        if not options:
            return
        facts = self.workload.facts.loader if self.workload.facts else None
        if self.workload.facts and facts is None:
            yield f"# The data is no DataLoader: make batches of {options.get('batch_size', 'the same')} samples."
            return
        kept = {"num_workers": facts.num_workers, "pin_memory": facts.pin_memory} if facts else {}
        options = {**{name: value for name, value in kept.items() if value}, **options}
        if not options.get("num_workers", "unknown"):
            options = {k: v for k, v in options.items() if k not in ("prefetch_factor", "persistent_workers")}
        size = options.pop("batch_size", None)
        arguments = ["loader.dataset"]
        if facts and facts.custom_batch_sampler:
            arguments.append("batch_sampler=loader.batch_sampler")
        else:
            arguments.append(f"batch_size={size or 'loader.batch_size'}")
            arguments += [] if facts and facts.iterable_dataset else ["sampler=loader.sampler"]
            arguments.append("drop_last=loader.drop_last")
        arguments += [f"{name}=loader.{name}" for name in ("collate_fn", "worker_init_fn", "generator")]
        arguments += [f"{name}={value!r}" for name, value in options.items()]
        yield call("loader = torch.utils.data.DataLoader", arguments)

    def compiled(self, step: StepText) -> Iterator[str]:
        """The model compiled in place: what it saves stays as it is."""
        plan = step.plan
        if plan.compiles_with == "none":
            if self.by_key.get("compile.mode") == "none":
                yield 'model = getattr(model, "_orig_mod", model)  # as it is without torch.compile'
            return
        if plan.freezing:
            self.imports.add("import torch._inductor.config")
            yield "torch._inductor.config.freezing = True"
        if plan.attention_backend != "auto":
            self.imports.add("import torch._functorch.config")
            yield "# The cache of compiled code does not tell attention kernels apart."
            yield "torch._functorch.config.enable_autograd_cache = False"
        if plan.compiles_loss and step.kind == "train":
            return
        blocks = {name for name, _ in self.workload.facts.repeated_blocks} if self.workload.facts else set()
        if plan.compile_scope == "regional" and blocks and "Sequential" not in blocks:
            yield "for block in model.modules():"
            yield f"    if type(block).__name__ in {sorted(blocks)}:".replace("'", '"')
            yield f"        block.compile({step.compiled_with})"
        elif plan.compile_scope in ("model", "with_loss"):
            yield f"model.compile({step.compiled_with})"
        elif plan.compile_scope == "regional":
            compiles = f"for block in blocks_to_compile(model):\n    block.compile({step.compiled_with})"
            yield from self.of_code(code_of("blocks", compiles))
        else:
            scope = next(recipe for recipe, _ in self.settings if recipe.plan_field == "compile_scope")
            yield from self.of_code(scope.code(plan.compile_scope))

    def spread(self, step: StepText) -> Iterator[str]:
        """The model over several GPUs, as far as a few lines can say it."""
        chosen = [(recipe, value) for recipe, value in self.settings if recipe.key.startswith(_PARALLEL)]
        ddp = step.plan.strategy == "ddp"
        arguments = ["model", "device_ids=[device.index]" if self.device == "cuda" else ""]
        for recipe, value in chosen:
            name = recipe.key.removeprefix(_PARALLEL)
            if ddp and name in _DDP_ARGUMENTS and value != recipe.default:
                arguments.append(f"{name}={value!r}")
            elif ddp and name == "sync_batch_norm" and value:
                yield "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"
            elif value != recipe.default and (name, value) != ("strategy", "ddp"):
                yield _BY_LOAD.format(setting=format_setting(recipe.key, value))
        if ddp:
            yield "if torch.distributed.is_initialized():  # under torchrun; each rank needs its part of the data"
            wrapped = call("model = torch.nn.parallel.DistributedDataParallel", filter(None, arguments), indent=8)
            yield textwrap.indent(wrapped, "    ")


_WHAT_A_GRAPH_REPEATS = """\
A graph repeats Python numbers as they were when it was recorded; learning rates are followed. When
another number changes that the model or the loss reads, or a checkpoint was loaded, call
step.recapture()."""


def _usage(step: StepText) -> Iterator[str]:
    """How the file is used, in the loop of the person."""
    if step.kind == "own":
        yield "    model, optimizer, loader = prepare(model, optimizer, loader)  # each model of several"
        yield "    step = own_step(step, model)"
    elif step.kind == "infer":
        yield "    model, _, loader = prepare(model, loader=loader)  # on the device already"
        yield "    step = infer_step(model)"
    else:
        yield "    model, optimizer, loader = prepare(model, optimizer, loader)  # on the device already"
        yield f"    step = train_step(model, optimizer{_LOSSES[step.form]}"
    yield "    for batch in loader:"
    yield f"        {'loss' if step.kind == 'train' else 'output' if step.kind == 'infer' else 'result'} = step(batch)"


def _loader_options(recipe: Recipe, value: Value) -> Mapping[str, object]:
    """The arguments of a DataLoader that a setting stands for; empty where it is more than arguments."""
    options: Mapping[str, object] | None = recipe.options(value) if hasattr(recipe, "options") else None
    if options is not None:
        return options
    name = recipe.key.partition(".")[2]
    return {name: value} if name in _LOADER and (name, value) != ("batch_size", 0) else {}


def _import_blocks(imports: Iterable[str]) -> tuple[str, str]:
    """Import statements, sorted as formatters do: those of the standard library, and the others."""
    lines = sorted(imports, key=lambda line: (line.startswith("from"), line))
    standard = [line for line in lines if line.split()[1].partition(".")[0] in sys.stdlib_module_names]
    return "\n".join(standard), "\n".join(line for line in lines if line not in standard)


def _compiler_arguments(plan: StepPlan) -> str:
    """The arguments of ``torch.compile``."""
    mode, found = plan.compiles_with, list[str]()
    if mode not in ("none", "default"):
        found.append(f'mode="{mode}"')
    if plan.compile_dynamic != "auto":
        found.append(f"dynamic={bool(plan.compile_dynamic)}")
    return ", ".join(found)


def _is_constant(node: ast.stmt) -> bool:
    """Whether a statement gives a value to a name in capitals."""
    names = node.targets if isinstance(node, ast.Assign) else []
    return bool(names) and all(isinstance(name, ast.Name) and name.id.isupper() for name in names)
