"""The step for the exported Python file: the words and expressions that fill the template.

The template is ``template.txt``: the header, the functions and the class of a step. A line may end in ``#?`` and words.
It is written, with the block that it opens, only if all of its words hold (``!word``: if the word does not hold). A
line may also end in ``#=`` and words. If they do not hold, its block is still written, without the line and indented
less. ``<NAME>`` is an expression, or lines, for the workload; if it is not empty, its name is a word that holds.
"""

import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from advisor.recipe import MODES_WITH_GRAPHS, Recipe, code_of
from advisor.recipe.plan import AROUND_LOSS, StepPlan
from advisor.records import BatchForm, Mode, Place, Value, WorkloadFacts

LINE = 100  # the longest line, in columns
_TEXT = Path(__file__).with_name("template.txt").read_text(encoding="utf-8")
_PARTS = re.findall(r"^=== ([A-Z]+)\n(.*?)(?=^=== |\Z)", _TEXT, re.MULTILINE | re.DOTALL)
TEMPLATE = {name: text.strip("\n") for name, text in _PARTS}
_TAKES = {"train": "model, optimizer, loss_fn", "infer": "model", "own": "step, model"}  # of the step's class
_USUAL_BATCHES = {
    "output_target": BatchForm("list", ("batch[0]",), "batch[1]"),
    "model_batch": BatchForm("list", (), "batch"),
    "own": BatchForm("list", ("*batch",)),
    "step": BatchForm("nested"),
    "infer": BatchForm("tensor", ("batch",)),
}
OF_DDP = ("gradient_as_bucket_view", "bucket_cap_mb", "find_unused_parameters")  # arguments of DDP and fields of a plan
_OWN_LOSS = 'output["loss"] if isinstance(output, dict) else getattr(output, "loss", output)'
_AS_RECORDED = 'mock.patch("torch.cuda.is_current_stream_capturing", recording)'
_TRANSFORMERS = {"TransformerEncoderLayer", "TransformerDecoderLayer"}  # PyTorch's own
_TEMPLATE_LINE = re.compile(r"(.*?)(?:  #([?=]) (.*))?")
_EXPRESSION = re.compile(r"<([A-Z_]+)>")


@dataclass(frozen=True, slots=True)
class WrittenFor:
    """The workload for which a file is written."""

    loss_form: str = ""  # from the baseline's record, like batch_form; if unknown, a loss takes output and target
    batch_form: BatchForm | None = None
    facts: WorkloadFacts | None = None
    measured: str = ""  # the speed-up and the machine, for the first line of the file
    place: Place | None = None  # the place of the step, if it is captured in the user's script


@dataclass(frozen=True, slots=True)
class StepText:
    """The text of a step and of the functions that it calls."""

    plan: StepPlan
    workload: WrittenFor
    captures_update: bool = False  # a CUDA graph can hold the optimizer's step, since the step needs no host
    transforms: int = 0  # the number of the dataset's last transforms that run on the device

    @classmethod
    def of(cls, settings: Iterable[tuple[Recipe, Value]], mode: Mode, device: str, workload: WrittenFor) -> Self:
        """Make the step with these settings."""
        facts = workload.facts
        optimizer = facts.optimizer if facts else None
        chosen: dict[str, Any] = {"grad_mode": "caller", "clip_norm": facts.clip_norm if facts else None}
        chosen |= {one.plan_field: value for one, value in settings if one.plan_field and value != "contiguous"}
        plan = StepPlan(mode, device, **chosen)
        values = {one.key: value for one, value in settings}
        loader = facts.loader if facts and values.get("data.transforms_on_device") else None
        transforms = len(loader.movable_transforms) if loader else 0
        if optimizer is None or plan.scales_gradients:
            return cls(plan, workload, transforms=transforms)
        how = values.get("optimizer.implementation", optimizer.implementation)
        counts_on_device = optimizer.builtin and optimizer.capturable and how != "for-loop"
        return cls(plan, workload, how == "fused" if optimizer.name == "SGD" else counts_on_device, transforms)

    @property
    def form(self) -> str:
        """The form of the loss (a ``LossForm``; the usual one if unknown), or ``infer`` for inference."""
        if self.plan.mode == Mode.INFER and self.workload.loss_form != "step":
            return "infer"
        return self.workload.loss_form or "output_target"

    @property
    def kind(self) -> str:
        """The kind of the step: ``train``, ``infer`` or ``own``."""
        return {"step": "own", "infer": "infer"}.get(self.form, "train")

    @property
    def batch(self) -> BatchForm:
        """The form of a batch; the usual form if it is unknown."""
        return self.workload.batch_form or _USUAL_BATCHES[self.form]

    @property
    def words(self) -> set[str]:
        """The template's words that hold for this step, without the names of non-empty expressions."""
        plan, kind, batch = self.plan, self.kind, self.batch.kind
        train, script = kind == "train", self.workload.place is not None
        gives = len(self.workload.place.gives) if self.workload.place else 0
        graph = plan.cuda_graph is True and plan.accumulate == 1 and batch != "object"
        plain = batch in ("list", "tensor") and plan.zero_grad != "zeros" and plan.strategy != "ddp"
        inside = graph and plan.mode == Mode.TRAIN and (kind == "own" or self.captures_update)
        several = graph or plan.device_prefetch or plan.converts_batches or self.transforms  # too long for one line
        blocks = {name for name, _ in self.workload.facts.repeated_blocks} if self.workload.facts else set[str]()
        holds = {
            "graph": graph,
            "around": plan.cuda_graph == AROUND_LOSS and self.form == "output_target" and plain,
            "script": script,
            "gives_one": gives == 1,
            "gives_several": gives > 1,
            "transformer": bool(blocks & _TRANSFORMERS),
            "inside": inside,
            "apart": graph and train and not inside,
            "copies": plan.compile_mode in MODES_WITH_GRAPHS and kind != "own",
            "on_device": several and batch != "object" and not script,
            "scaler": train and plan.scales_gradients,
            "compiles_loss": train and plan.compiles_loss,
        }
        switches = {one.name for one in fields(plan) if getattr(plan, one.name) is True}
        named = {kind, batch, plan.zero_grad, plan.compile_scope, f"{self.form}_loss", *switches}
        return named | {word for word, does in holds.items() if does}

    def written(self, text: str, further: Mapping[str, str] | None = None) -> str:
        """Fill in a text of the template for this step; ``further`` are additional expressions."""
        expressions = {**self._expressions(), **(further or {})}
        words = self.words | {name.lower() for name, expression in expressions.items() if expression}
        expressions["UPDATE"] = _written(TEMPLATE["UPDATE"], words, expressions)
        return _written(text, words, expressions)

    def _expressions(self) -> dict[str, str]:
        plan, words, batch, train = self.plan, self.words, self.batch, self.kind == "train"
        how = ", non_blocking=True" if plan.non_blocking or plan.device_prefetch else ""
        how += ", copy=True" if "graph" in words else ""  # even if the batch is on the device already
        one = "on_device({}, self.device)" if "on_device" in words else "{}.to(self.device" + how + ")"
        moved = {
            "list": f"[{one.format('part')} for part in batch]",
            "mapping": f"{{name: {one.format('part')} for name, part in batch.items()}}",
            "nested": f"on_tensors(lambda part: {one.format('part')}, batch)",
        }
        tensors = {"tensor": "[{}]", "mapping": "{}.values()", "nested": "tensors_of({})"}.get(batch.kind, "{}")
        updates = str(plan.accumulate) if train and plan.accumulate > 1 else ""
        share = f"loss / {updates}" if updates else "loss"
        head = "output =" if train or "copies" in words else "return"
        ddp_arguments = ["model"] + (["device_ids=[device.index]"] if plan.device == "cuda" else [])
        chosen = [name for name in OF_DDP if getattr(plan, name) != getattr(StepPlan(plan.mode, plan.device), name)]
        ddp_arguments += [f"{name}={getattr(plan, name)}" for name in chosen]
        ddp = call("model = torch.nn.parallel.DistributedDataParallel", ddp_arguments, indent=8)
        own, place = self.kind == "own", self.workload.place
        takes = _TAKES[self.kind] + ("=None" if self.form == "own" else "")
        return {
            "CLASS": "CapturedStep" if place else f"{self.kind.title()}Step",
            "TAKES": f"{takes}, *optimizers" if place else takes,
            "STAR": "*" if place else "",
            "HOW": how,
            "LAST": str(self.transforms or ""),
            "RANK": "5" if plan.memory_format.endswith("3d") else "4",
            "MEMORY_FORMAT": plan.memory_format.removeprefix("none"),
            "INPUT_DTYPE": plan.input_dtype.removeprefix("none"),
            "MOVED": moved.get(batch.kind, one.format("batch")),
            "TENSORS": tensors.format("batch"),
            "STATIC_TENSORS": tensors.format("static"),
            "COMPILED_LOSS": ", ".join(["self.loss", *self.compiled_with()]),
            "WITH": _with(self.contexts()),
            "ON_STREAM": _with(["torch.cuda.stream(self.stream)", *([_AS_RECORDED] if "regional" in words else [])]),
            "INPUTS": ", ".join(batch.inputs),
            "CALL": call(f"{head} self.{'step' if own else 'model'}", ["batch"] if own else batch.inputs, indent=12),
            "TARGET": f", {batch.target}" if batch.target else "",
            "OWN_LOSS": (batch.target or _OWN_LOSS) if self.form == "own" else "",
            "WARM_UP": "11" if plan.strategy == "ddp" else "3",  # DistributedDataParallel times its first ten
            "RUN": "run" if "graph" in words else "__call__",
            "ACCUMULATE": updates,
            "SET_TO_NONE": "set_to_none=False" if plan.zero_grad == "zeros" else "",
            "LOSS": f"self.scaler.scale({share})" if plan.scales_gradients else f"({share})" if updates else share,
            "CLIP_NORM": str(plan.clip_norm or ""),
            "DDP": ddp if plan.strategy == "ddp" else "",
            "CLONE": ".clone()" if "copies" in words else "",
        }

    def compilation(self) -> str:
        """The code that compiles the model, with the functions that it needs; empty if the model is not compiled."""
        plan, arguments = self.plan, ", ".join(self.compiled_with())
        if plan.compiles_with == "none":
            return ""
        if plan.compile_scope == "pointwise":
            return code_of("pointwise", "model.compile(backend=pointwise_only)")
        if plan.compile_scope != "regional":
            return f"model.compile({arguments})"
        names = sorted({name for name, _ in self.workload.facts.repeated_blocks}) if self.workload.facts else []
        if not names or "Sequential" in names:  # other modules may have these classes too
            return code_of("blocks", f"for block in blocks_to_compile(model):\n    block.compile({arguments})")
        classes = ", ".join(f'"{name}"' for name in names)
        inside = f"    if type(block).__name__ in [{classes}]:\n        block.compile({arguments})"
        return f"for block in model.modules():\n{inside}"

    def compiled_with(self) -> list[str]:
        """The arguments of torch.compile."""
        mode = self.plan.compiles_with
        found = [f'mode="{mode}"'] if mode not in ("none", "default") else []
        found += ["dynamic=False"] if self.plan.few_shapes else []
        return found + (['options={"combo_kernels": True}'] if self.plan.combo_kernels else [])

    def contexts(self, device: str = "") -> list[str]:
        """The contexts around the model's call and the loss. ``device`` is the device's expression in a script."""
        plan, found = self.plan, list[str]()
        grad = "no_grad" if plan.cuda_graph and plan.runs_under == "caller" else plan.runs_under
        if plan.mode == Mode.INFER and grad != "caller":
            found.append("torch.enable_grad()" if grad == "grad" else f"torch.{grad}()")
        if plan.create_on_device:
            found.append(f"torch.device({device})" if device else "self.device")
        if plan.autocast != "none":
            # The user's own step, or a loss that calls the model, may change the weights between two model calls.
            cache = ", cache_enabled=False" if self.form in ("step", "model_batch") and not device else ""
            found.append(f"torch.autocast({device or 'self.device.type'}, dtype=torch.{plan.autocast}{cache})")
        return found


def _with(contexts: list[str]) -> str:
    """The head of a ``with`` statement, for two levels of indentation; empty without contexts."""
    head = f"with {', '.join(contexts)}:" if contexts else ""
    return head if len(head) <= LINE - 8 else call("with ", contexts, indent=LINE) + ":"


def call(head: str, arguments: Iterable[str], *, indent: int = 4) -> str:
    """A call on one line if it fits, or else with one argument per line, like code formatters write it."""
    found = list(arguments)
    one = f"{head}({', '.join(found)})"
    return one if indent + len(one) <= LINE else "\n".join([f"{head}(", *(f"    {each}," for each in found), ")"])


def _written(text: str, words: Collection[str], expressions: Mapping[str, str]) -> str:
    """The lines of a template text whose words hold, with expressions filled in. All lines of one are indented."""
    lines = list[str]()
    left_out = sys.maxsize  # the indentation of the last line, if it was left out together with its block
    alone = list[int]()  # the indentations of the enclosing lines that were left out without their blocks
    for line in text.strip("\n").splitlines():
        code, mark, condition = _TEMPLATE_LINE.fullmatch(line).groups("")  # type: ignore[union-attr]
        depth = len(code) - len(code.lstrip())
        if code and depth > left_out:
            continue
        left_out = sys.maxsize
        alone = [outer for outer in alone if depth > outer]
        if all((word.strip("!") in words) is not word.startswith("!") for word in condition.split()):
            found = _EXPRESSION.sub(lambda match: expressions[match[1]], code.strip())
            lines += textwrap.indent(found, " " * (depth - 4 * len(alone))).splitlines() if code else [""]
        elif mark == "=":
            alone.append(depth)
        else:
            left_out = depth
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
