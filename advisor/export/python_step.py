"""A step for the exported Python file: the words and expressions that fill the template, by the plan and the batch."""

import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from advisor.export import python_template as template
from advisor.recipe import Recipe
from advisor.recipe.plan import StepPlan
from advisor.records import BatchForm, Mode, Value, WorkloadFacts

LINE = 100  # columns of the longest line
_KINDS = {
    "train": {
        "CLASS": "TrainStep",
        "DOES": "trains on a batch and returns its loss",
        "TAKES": "model, optimizer, loss_fn",
        "RESULT": "loss",
    },
    "infer": {"CLASS": "InferStep", "DOES": "returns the model's output", "TAKES": "model", "RESULT": "output"},
    "own": {"CLASS": "OwnStep", "DOES": "returns what your step returns", "TAKES": "step, model", "RESULT": "result"},
}
_USUAL_BATCHES = {
    "train": BatchForm("list", ("batch[0]",), "batch[1]"),
    "infer": BatchForm("tensor", ("batch",)),
    "own": BatchForm("nested"),
}
_ATTENTION = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
_DDP_ARGUMENTS = frozenset(
    {"gradient_as_bucket_view", "static_graph", "bucket_cap_mb", "find_unused_parameters", "broadcast_buffers"}
)
_TEMPLATE_LINE = re.compile(r"(.*?)(?:  #([?=]) (.*))?")
_EXPRESSION = re.compile(r"<([A-Z_]+)>")


@dataclass(frozen=True, slots=True)
class WrittenFor:
    """The workload that a file is written for. ``loss_form`` and ``batch_form`` are those of the baseline's record.

    ``facts`` are None where they are not known; a loss then takes output and target. ``measured`` is the speed-up, and
    what it was measured with, for the first line.
    """

    loss_form: str = ""
    batch_form: BatchForm | None = None
    facts: WorkloadFacts | None = None
    measured: str = ""


@dataclass(frozen=True, slots=True)
class StepText:
    """The text of a step and of the functions that it calls.

    ``implementation``: how the optimizer updates, a value of ``optimizer.implementation``.
    """

    plan: StepPlan
    workload: WrittenFor
    implementation: str = "default"

    @classmethod
    def of(cls, settings: list[tuple[Recipe, Value]], mode: Mode, device: str, workload: WrittenFor) -> Self:
        """The step with these settings."""
        facts = workload.facts
        chosen: dict[str, Any] = {"grad_mode": "caller", "clip_norm": facts.clip_norm if facts else None}
        chosen |= {
            recipe.plan_field: value for recipe, value in settings if recipe.plan_field and value != "contiguous"
        }
        values = {recipe.key: value for recipe, value in settings}
        present = facts.optimizer.implementation if facts and facts.optimizer else "default"
        return cls(StepPlan(mode, device, **chosen), workload, str(values.get("optimizer.implementation", present)))

    @property
    def kind(self) -> str:
        """``train``, ``infer`` or ``own``."""
        return "own" if self.workload.loss_form == "step" else str(self.plan.mode)

    @property
    def loss_form(self) -> str:
        """The form of the loss, one of ``LossForm``; the usual one where it is not known."""
        return self.workload.loss_form or "output_target"

    @property
    def batch(self) -> BatchForm:
        """The form of a batch; the usual one where it is not known."""
        whole = BatchForm("list", ("*batch",), "batch")
        usual = whole if self.loss_form in ("own", "model_batch") else _USUAL_BATCHES[self.kind]
        return self.workload.batch_form or usual

    @property
    def words(self) -> set[str]:
        """The words that hold for this step, beside those of its expressions; the template says what they are for."""
        plan, kind, batch = self.plan, self.kind, self.batch.kind
        trains, train = plan.mode == Mode.TRAIN, kind == "train"
        graph = plan.cuda_graph is True and plan.accumulate == 1 and batch != "object"
        inside = graph and trains and (kind == "own" or self._captures_update)
        copies = plan.compile_mode in ("reduce-overhead", "max-autotune") and kind != "own"
        converts = graph or plan.device_prefetch or plan.converts_batches or batch == "nested"
        whole = ("model",) if train else ("model", "with_loss")
        holds = {
            kind: True,
            f"{self.loss_form}_loss": train,
            "trains": trains,
            "graph": graph,
            "inside": inside,
            "apart": graph and train and not inside,
            "copies": copies,
            "nested": batch == "nested",
            "on_device": converts and batch != "object",
            "manual": plan.zero_grad == "manual",
            "scaler": train and plan.scales_gradients,
            "compiles_loss": train and plan.compiles_loss,
            "compiles_model": plan.compiles_with != "none" and plan.compile_scope in whole,
        }
        switches = {one.name for one in fields(plan) if getattr(plan, one.name) is True}
        return switches | {word for word, does in holds.items() if does}

    @property
    def _captures_update(self) -> bool:
        """Whether a graph can hold the optimizer's step: the host has no part in it."""
        one = self.workload.facts.optimizer if self.workload.facts else None
        if one is None or self.plan.scales_gradients:
            return False
        if one.name == "SGD":
            return self.implementation == "fused"
        return one.builtin and one.capturable and self.implementation != "for-loop"

    def expresses(self, recipe: Recipe, value: Value) -> bool:
        """Whether the file has code for a setting."""
        if recipe.key.startswith("parallel."):
            return self.plan.strategy == "ddp" and recipe.plan_field in (*_DDP_ARGUMENTS, "strategy", "sync_batch_norm")
        if recipe.plan_field == "cuda_graph":
            return "graph" in self.words
        return value != "regional" or bool(self._blocks)

    @property
    def _blocks(self) -> list[str]:
        """The classes of the blocks that are compiled by themselves, where their names tell them."""
        facts = self.workload.facts
        names = sorted({f'"{name}"' for name, _ in facts.repeated_blocks}) if facts else []
        return names if self.plan.compile_scope == "regional" and '"Sequential"' not in names else []

    def functions(self) -> Iterator[str]:
        """The functions that stand before ``prepare``."""
        words = self.words
        needed = {
            template.ON_DEVICE: "on_device" in words,
            template.TENSORS_OF: words >= {"graph", "nested"},
            template.COPIED: "train" not in words and bool(words & {"graph", "copies"}),
            template.OPTIMIZERS_OF: words >= {"own", "inside"},
            template.CAPTURABLE: "inside" in words or words >= {"train", "compile_optimizer"},
            template.DEVICE_LOADER: "device_prefetch" in words,
        }
        yield from (self.written(text) for text, is_needed in needed.items() if is_needed)

    def text(self) -> str:
        """The class, and the name by which it is used."""
        graph = template.GRAPH if "graph" in self.words else ""
        return f"{self.written(template.STEP + graph)}\n\n\n{self.kind}_step = {_KINDS[self.kind]['CLASS']}"

    def written(self, text: str, further: Mapping[str, str] | None = None) -> str:
        """A text of the template for this step; ``further`` are expressions beside the step's own."""
        expressions = {**self._expressions(), **(further or {})}
        words = self.words | {name.lower() for name, expression in expressions.items() if expression}
        expressions["UPDATE"] = _written(template.UPDATE, words, expressions)
        return _written(text, words, expressions)

    def _expressions(self) -> dict[str, str]:
        plan, words, batch, train = self.plan, self.words, self.batch, self.kind == "train"
        how = ", non_blocking=True" if plan.non_blocking or plan.device_prefetch else ""
        how += ", copy=True" if "graph" in words else ""  # a batch may be on the device already
        one = "on_device({}, self.device)" if "on_device" in words else "{}.to(self.device" + how + ")"
        moved = {
            "list": f"[{one.format('part')} for part in batch]",
            "mapping": f"{{name: {one.format('part')} for name, part in batch.items()}}",
        }
        tensors = {"tensor": "[{}]", "mapping": "{}.values()", "nested": "tensors_of({})"}.get(batch.kind, "{}")
        compiled_with = [f'mode="{plan.compiles_with}"'] if plan.compiles_with not in ("none", "default") else []
        compiled_with += [f"dynamic={plan.compile_dynamic}"] if plan.compile_dynamic != "auto" else []
        updates = str(plan.accumulate) if train and plan.accumulate > 1 else ""
        share = f"loss / {updates}" if updates else "loss"
        chosen = [(one.name, getattr(plan, one.name)) for one in fields(plan) if getattr(plan, one.name) != one.default]
        parallel = ["model", *(["device_ids=[device.index]"] if plan.device == "cuda" else [])]
        parallel += [f"{name}={value!r}" for name, value in chosen if name in _DDP_ARGUMENTS]
        wrapped = call("model = torch.nn.parallel.DistributedDataParallel", parallel, indent=8)
        called = ("self.step", ("batch",)) if self.kind == "own" else ("self.model", batch.inputs)
        return {
            **_KINDS[self.kind],
            "DOES": _KINDS[self.kind]["DOES"] + (", by a graph for each shape of batch" if "graph" in words else ""),
            "TAKES": _KINDS[self.kind]["TAKES"] + ("=None" if self.loss_form == "own" else ""),
            "HOW": how,
            "RANK": "5" if plan.memory_format.endswith("3d") else "4",
            "MEMORY_FORMAT": plan.memory_format.removeprefix("none"),
            "INPUT_DTYPE": plan.input_dtype.removeprefix("none"),
            "MOVED": moved.get(batch.kind, one.format("batch")),
            "TENSORS": tensors.format("batch"),
            "STATIC_TENSORS": tensors.format("static"),
            "COMPILED_WITH": ", ".join(compiled_with),
            "COMPILED_LOSS": ", ".join(["self.loss", *compiled_with]),
            "WITH": _with(self._contexts()),
            "WITH_ATTENTION": _with(self._attention()) if train else "",
            "CALL": call(f"output = {called[0]}", called[1], indent=12),
            "TARGET": f", {batch.target}" if batch.target else "",
            "RUN": "run" if "graph" in words else "__call__",
            "ACCUMULATE": updates,
            "SET_TO_NONE": "set_to_none=False" if plan.zero_grad == "zeros" else "",
            "LOSS": f"self.scaler.scale({share})" if plan.scales_gradients else f"({share})" if updates else share,
            "CLIP_NORM": str(plan.clip_norm or ""),
            "BLOCKS": f"[{', '.join(self._blocks)}]" if self._blocks else "",
            "DDP": wrapped if plan.strategy == "ddp" else "",
            "CLONE": ".clone()" if "copies" in words else "",
        }

    def _contexts(self) -> list[str]:
        plan, found = self.plan, list[str]()
        grad = "no_grad" if plan.cuda_graph and plan.runs_under == "caller" else plan.runs_under
        if plan.mode == Mode.INFER and grad != "caller":
            found.append("torch.enable_grad()" if grad == "grad" else f"torch.{grad}()")
        if plan.create_on_device:
            found.append("self.device")
        found += self._attention()
        if plan.autocast != "none":
            # A step of one's own may change the weights between two calls of the model.
            cache = ", cache_enabled=False" if self.kind == "own" else ""
            found.append(f"torch.autocast(self.device.type, dtype=torch.{plan.autocast}{cache})")
        return found

    def _attention(self) -> list[str]:
        chosen = _ATTENTION.get(self.plan.attention_backend)
        return [f"torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.{chosen})"] if chosen else []


def _with(contexts: list[str]) -> str:
    """The head of a ``with``, two levels deep in the file; empty without a context."""
    if not contexts:
        return ""
    head = f"with {', '.join(contexts)}:"
    return head if len(head) <= LINE - 8 else call("with ", contexts, indent=LINE) + ":"


def call(head: str, arguments: Iterable[str], *, indent: int = 4) -> str:
    """A call on one line if it fits there, else with an argument a line, as formatters write it."""
    found = list(arguments)
    one = f"{head}({', '.join(found)})"
    if indent + len(one) <= LINE:
        return one
    return "\n".join([f"{head}(", *(f"    {argument}," for argument in found), ")"])


def _written(text: str, words: Collection[str], expressions: Mapping[str, str]) -> str:
    """A text of the template with the lines whose words hold; expressions of several lines are indented whole."""
    lines = list[str]()
    left_out = sys.maxsize  # the indentation of the last line that was left out, if that was with its block
    alone = list[int]()  # the indentations of the lines that were left out around this one, without their blocks
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
