"""A step for the exported Python file: the words and expressions that fill the template, by the plan and the batch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from advisor.export import python_template as template
from advisor.recipe.plan import StepPlan
from advisor.records import Mode

LINE = 100  # columns of the longest line
_CLASSES = {"train": "TrainStep", "infer": "InferStep", "own": "OwnStep"}
_DOES = {
    "train": "trains on a batch and returns its loss",
    "infer": "returns the model's output",
    "own": "returns what your step returns",
}
_TAKES = {"train": "self, model, optimizer, loss_fn", "infer": "self, model", "own": "self, step, model"}
_ATTENTION = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
_OWN_LOSS = 'return output["loss"] if isinstance(output, dict) else getattr(output, "loss", output)'
# Steps of each kind that run before its graph is recorded; DistributedDataParallel times its first ten. Counts.
_WARM_UP, _WARM_UP_OF_DDP = 3, 11


@dataclass(frozen=True, slots=True)
class BatchText:
    """Expressions about a batch. ``form`` is that of the baseline's record: ``trial/batch_form.py`` lists the forms.

    ``converts``: the tensors get another layout or type on the device. ``waits``: the end of the arguments of ``to``.
    """

    form: str
    converts: bool
    waits: str

    @property
    def kind(self) -> str:
        """The form's first word."""
        return self.form.partition(" ")[0].partition(":")[0]

    @property
    def _details(self) -> list[str]:
        return [*self.form.partition(" ")[0].split(":")[1:], "", ""]

    @property
    def is_nested(self) -> bool:
        """Whether the tensors have to be looked for."""
        return "nested" in self.form.split()

    @property
    def needs_function(self) -> bool:
        """Whether moving a part takes more than a call of ``to``."""
        return self.is_nested or (self.converts and self.kind != "object")

    def moved(self, end: str = "") -> str:
        """The batch on the device, with ``end`` behind each tensor."""
        if self.is_nested:
            return "copied(on_device(batch, self.device))" if end else "on_device(batch, self.device)"
        name = "batch" if self.kind in ("tensor", "object") else "part"
        one = f"on_device({name}, self.device)" if self.needs_function else f"{name}.to(self.device{self.waits})"
        if self.kind == "mapping":
            return f"{{name: {one}{end} for name, part in batch.items()}}"
        return f"{one}{end}" if name == "batch" else f"[{one}{end} for part in batch]"

    def tensors(self, batch: str) -> str:
        """The tensors of a batch."""
        if self.is_nested:
            return f"tensors_of({batch})"
        return {"tensor": f"[{batch}]", "mapping": f"{batch}.values()"}.get(self.kind, batch)

    def inputs(self, *, has_target: bool) -> str:
        """The arguments of a model that is called with a batch; without the target of a pair if it has one."""
        first, names = self._details[:2]
        if self.kind == "mapping":
            return f"**{{name: batch[name] for name in {_tuple(names)}}}" if names else "**batch"
        if self.kind == "pair":
            stars = {"mapping": "**", "list": "*"}.get(first, "")
            return f"{stars}batch[0]" if has_target else "*batch"
        return f"*batch[:{first}]" if self.kind == "parts" else "batch"

    def apart(self) -> tuple[list[str], str, str]:
        """Lines that divide a batch, the arguments of the model, and what the loss gets beside the output."""
        lines, inputs, target = self._apart()
        words = self.form.split()
        if "output_only" in words:
            return [], self.inputs(has_target=True), ""
        if "of_batch" in words:
            return [], self.inputs(has_target=True), ", batch"
        return lines, inputs, f", {target}"

    def _apart(self) -> tuple[list[str], str, str]:
        first, names = self._details[:2]
        if self.kind == "mapping" and names:
            return [], self.inputs(has_target=True), f'batch["{first}"]'
        if self.kind == "mapping":
            return ["inputs = dict(batch)", f'target = inputs.pop("{first or "labels"}")'], "**inputs", "target"
        if self.kind == "pair":
            stars = {"mapping": "**", "list": "*"}.get(first, "")
            return ["inputs, target = batch"], f"{stars}inputs", "target"
        if self.kind == "parts":
            several = "targets" in self.form.split()
            target = f"*batch[{first}:]" if several else f"batch[{first}]"
            return [], f"*batch[:{first}]", target
        return [], "batch", "batch.y" if self.kind == "object" else "batch"


@dataclass(frozen=True, slots=True)
class StepText:
    """The text of a step and of the functions that it calls.

    ``form`` is that of the loss, one of ``LossForm``. ``captures_update``: a graph can hold the optimizer's step.
    ``compiled_with``: the arguments of ``torch.compile``. ``options``: those that the optimizer is captured with.
    ``clip_norm``: what the norm of the gradients is clipped to.
    """

    plan: StepPlan
    form: str
    batch: BatchText
    captures_update: bool = False
    compiled_with: str = ""
    options: str = ""
    clip_norm: float | None = None

    @property
    def kind(self) -> str:
        """``train``, ``infer`` or ``own``."""
        return "own" if self.form == "step" else str(self.plan.mode)

    @property
    def words(self) -> set[str]:
        """The words that hold for this step; the template says what they are for."""
        plan, kind = self.plan, self.kind
        trains, train = plan.mode == Mode.TRAIN, kind == "train"
        graph = plan.cuda_graph is True and plan.accumulate == 1 and self.batch.kind != "object"
        inside = graph and trains and (kind == "own" or self.captures_update)
        copies = plan.compile_mode in ("reduce-overhead", "max-autotune") and kind != "own"
        holds = {
            kind: True,
            "trains": trains,
            "graph": graph,
            "inside": inside,
            "apart": graph and train and not inside,
            "copies": copies,
            "copied": (graph and (not train or self.batch.is_nested)) or (copies and not train),
            "nested": self.batch.is_nested,
            "memory_format": plan.memory_format != "none",
            "input_dtype": plan.input_dtype != "none",
            "own_loss": self.form == "own",
            "scaler": train and plan.scales_gradients,
            "counts": plan.accumulate > 1,
            "loss_sum": plan.loss_item == "accumulated",
            "compiles_loss": train and plan.compiles_loss,
            "compiles_update": train and plan.compile_optimizer,
            "deletes": plan.empty_cache == "every_step_with_del",
            "after": bool(self._after("loss")),
            "prefetches": plan.device_prefetch,
        }
        return {word for word, does in holds.items() if does}

    def parts(self) -> Iterator[str]:
        """The functions that stand before ``prepare``."""
        words = self.words
        needed = {
            template.ON_DEVICE: self.batch.needs_function,
            template.TENSORS_OF: words >= {"graph", "nested"},
            template.COPIED: "copied" in words,
            template.OPTIMIZERS_OF: words >= {"own", "inside"},
            template.CAPTURABLE: "inside" in words,
            template.DEVICE_LOADER: "prefetches" in words,
        }
        yield from (self._written(text) for text, is_needed in needed.items() if is_needed)

    def text(self) -> str:
        """The class, and the name by which it is used."""
        graph = "\n\n" + self._written(template.GRAPH) if "graph" in self.words else ""
        return f"{self._written(template.STEP)}{graph}\n\n\n{self.kind}_step = {_CLASSES[self.kind]}"

    def constants(self) -> str:
        """The constants at the top of the file."""
        return self._written(template.CONSTANTS) if "graph" in self.words else ""

    def _written(self, text: str) -> str:
        plan, words, batch, train = self.plan, self.words, self.batch, self.kind == "train"
        key = ["self.model.training", "*shapes"]
        key += [f"*{name}" for name, word in (("trained", "trains"), ("numbers", "inside")) if word in words]
        found = {
            "CLASS": _CLASSES[self.kind],
            "DOES": _DOES[self.kind] + (", by a graph for each shape of batch" if "graph" in words else ""),
            "TAKES": _TAKES[self.kind] + ("=None" if words >= {"train", "own_loss"} else ""),
            "WARM_UP": str(_WARM_UP_OF_DDP if plan.strategy == "ddp" else _WARM_UP),
            "WAITS": batch.waits,
            "RANK": "5" if plan.memory_format.endswith("3d") else "4",
            "MEMORY_FORMAT": plan.memory_format,
            "INPUT_DTYPE": plan.input_dtype,
            "OPTIONS": "capturable=True" if self.kind == "own" else self.options,
            "IS_TENSOR": "isinstance(rate, torch.Tensor)",
            "MOVED": batch.moved(),
            "STATIC": batch.moved(".clone()"),
            "TENSORS": batch.tensors("batch"),
            "STATIC_TENSORS": batch.tensors("static"),
            "RESULT": "result.clone()" if train else "copied(result)",
            "CLONE": ".clone()" if "copies" in words else "",
            "COMPILED_LOSS": ", ".join(filter(None, ["self.loss", self.compiled_with])),
            "LOSS": self._loss(),
            "CALL": self._call(words),
            "ZERO_GRAD": self._in_updates(*self._zero_grad()),
            "BACKWARD": self._backward(),
            "UPDATE": self._in_updates(*self._update()),
            "AFTER": "\n".join(self._after("loss")),
            "AFTER_RESULT": "\n".join(self._after("result")),
            "KEY": ", ".join(key),
        }
        return template.written(text, words, found)

    def _loss(self) -> str:
        if self.form == "own":
            return within(self._contexts(), f"output = self.model({self.batch.inputs(has_target=False)})", _OWN_LOSS)
        if self.form == "model_batch":
            return within(self._contexts(), "return self.loss_fn(self.model, batch)")
        lines, inputs, target = self.batch.apart()
        return "\n".join([*lines, within(self._contexts(), f"return self.loss_fn(self.model({inputs}){target})")])

    def _call(self, words: set[str]) -> str:
        """The call of a model in inference, or of a step of one's own."""
        called = "self.step(batch)" if self.kind == "own" else f"self.model({self.batch.inputs(has_target=True)})"
        if "copies" not in words:
            return within(self._contexts(), f"return {called}")
        return "\n".join([within(self._contexts(), f"result = {called}"), "return copied(result)"])

    def _contexts(self) -> Iterator[str]:
        plan = self.plan
        grad = "no_grad" if plan.cuda_graph and plan.runs_under == "caller" else plan.runs_under
        if plan.mode == Mode.INFER and grad != "caller":
            yield "torch.enable_grad()" if grad == "grad" else f"torch.{grad}()"
        if plan.create_on_device:
            yield "self.device"
        yield from self._attention()
        if plan.autocast != "none":
            # A step of one's own may change the weights between two calls of the model.
            cache = ", cache_enabled=False" if self.kind == "own" else ""
            yield f"torch.autocast(self.device.type, dtype=torch.{plan.autocast}{cache})"

    def _attention(self) -> Iterator[str]:
        if self.plan.attention_backend != "auto":
            backend = _ATTENTION[self.plan.attention_backend]
            yield f"torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.{backend})"

    def _in_updates(self, *lines: str) -> str:
        """Lines that run once an update, which may take several batches."""
        if self.plan.accumulate == 1:
            return "\n".join(lines)
        return "\n".join([f"if self.batches % {self.plan.accumulate} == 0:", *(f"    {line}" for line in lines)])

    def _zero_grad(self) -> list[str]:
        if self.plan.zero_grad == "manual":
            return ["for parameter in self.model.parameters():", "    parameter.grad = None"]
        return [f"self.optimizer.zero_grad({'set_to_none=False' if self.plan.zero_grad == 'zeros' else ''})"]

    def _backward(self) -> str:
        parts = self.plan.accumulate
        loss = f"loss / {parts}" if parts > 1 else "loss"
        if self.plan.scales_gradients:
            loss = f"self.scaler.scale({loss})"
        elif parts > 1:
            loss = f"({loss})"
        # Activation checkpoints, also those of the model's own, run parts of the forward pass again.
        return within(self._attention(), f"{loss}.backward()")

    def _update(self) -> Iterator[str]:
        scaled = self.plan.scales_gradients
        if self.clip_norm is not None:
            yield from ["self.scaler.unscale_(self.optimizer)"] if scaled else []
            yield f"torch.nn.utils.clip_grad_norm_(self.model.parameters(), {self.clip_norm})"
        if scaled:
            yield from ("self.scaler.step(self.optimizer)", "self.scaler.update()")
        else:
            yield "self.compiled_update()" if self.plan.compile_optimizer else "self.optimizer.step()"

    def _after(self, result: str) -> list[str]:
        """Lines that follow each step, replayed or not; usually none."""
        if self.kind != "train":
            return []
        reads = {"every_step": [f"{result}.item()"], "accumulated": [f"self.loss_sum += {result}.detach()"]}
        empties = ["torch.cuda.empty_cache()"] if self.plan.empty_cache != "never" else []
        return [*reads.get(self.plan.loss_item, []), *empties]


def _tuple(names: str) -> str:
    """The text of a tuple of names that are joined by commas."""
    quoted = [f'"{name}"' for name in names.split(",")]
    return f"({', '.join(quoted)}{',' * (len(quoted) == 1)})"


def within(contexts: Iterable[str], *lines: str) -> str:
    """Lines inside a ``with``, if there is a context for it; two levels deep in the file."""
    found = list(contexts)
    if not found:
        return "\n".join(lines)
    head = f"with {', '.join(found)}:"
    if len(head) > LINE - 8:
        head = "\n".join(["with (", *(f"    {context}," for context in found), "):"])
    return "\n".join([head, *(f"    {line}" for line in lines)])


def call(head: str, arguments: Iterable[str], *, indent: int = 4) -> str:
    """A call on one line if it fits there, else with an argument a line, as formatters write it."""
    found = list(arguments)
    one = f"{head}({', '.join(found)})"
    return (
        one if indent + len(one) <= LINE else "\n".join([f"{head}(", *(f"    {argument}," for argument in found), ")"])
    )
