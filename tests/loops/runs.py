"""The calls that a tuned loop changes, in both forms: as a plain loop does them, and as ``advisor.load`` gives them."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from advisor.records import Value
from advisor.step.tuning import Tuning

Loss = Callable[..., Any]
Note = float | int | bool | str | torch.Tensor | list[float]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a plain loop computes in by hand: the type of autocast in its steps, the precision of float32 products.

    Both are settings too. Plain and tuned run share them, so that loops are compared and not roundings. ``layout`` is
    the memory format of the models' weights: other kernels compute in another, and some round where others do not.
    """

    autocast: str = "none"
    products: str = "highest"
    layout: str = "contiguous_format"

    @property
    def rounds(self) -> bool:
        """Whether products are rounded to fewer bits than float32 has."""
        return self.autocast != "none" or self.products != "highest"

    def set_products(self) -> None:
        """Set the process's flags for float32 products; those of convolutions as well."""
        if self.products != "highest":
            torch.set_float32_matmul_precision(self.products)
            torch.backends.cudnn.allow_tf32 = True


def arithmetic_of(settings: Mapping[str, Value]) -> Arithmetic:
    """The arithmetic that settings ask for."""
    autocast, products = settings.get("precision.autocast", "none"), settings.get("precision.float32_matmul", "highest")
    return Arithmetic(str(autocast), str(products))


class Notebook:
    """What a loop wrote down while it ran, by name, and its models as they were before the first step."""

    def __init__(self) -> None:
        self.notes: dict[str, list[Note]] = {}
        self._starts: list[tuple[nn.Module, dict[str, torch.Tensor]]] = []

    def keep_start(self, model: nn.Module) -> None:
        """Keep the model's parameters and buffers: what it learns is measured from there."""
        self._starts.append((model, copied(model.state_dict())))

    def start_of(self, item: object) -> dict[str, torch.Tensor]:
        """What was kept of a model; nothing of anything else."""
        return next((state for model, state in self._starts if model is item), {})


class Run:
    """A plain loop's calls, in plain PyTorch: what every tuned run is compared with.

    ``device`` is where the loop computes. ``resumed`` is the run that goes on from a checkpoint; None for this one.
    ``arithmetic`` is what its own steps compute in, by hand: under autocast to float16 they scale gradients.
    """

    def __init__(self, device: torch.device, notebook: Notebook, arithmetic: Arithmetic) -> None:
        self.device = device
        self.notebook = notebook
        self.arithmetic = arithmetic
        self.resumed: Run | None = None

    @property
    def restarted(self) -> Run:
        """The run that goes on from a checkpoint."""
        return self.resumed or self

    def note(self, name: str, value: Note) -> None:
        """Write down a value that both runs have to agree on: whole numbers and texts exactly."""
        kept = value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
        self.notebook.notes.setdefault(name, []).append(kept)

    def note_rates(self, optimizer: Any) -> None:
        """Write down the learning rate of each parameter group, as the optimizer has it now."""
        self.note("rates", [float(group["lr"]) for group in optimizer.param_groups])

    def prepare(self, *objects: Any) -> Any:
        """Return the objects as they are."""
        for item in objects:
            if isinstance(item, nn.Module):
                self.notebook.keep_start(item)
                if self.arithmetic.layout != "contiguous_format":
                    item.to(memory_format=getattr(torch, self.arithmetic.layout))
        return objects[0] if len(objects) == 1 else objects

    def train_step(
        self, model: nn.Module, optimizer: Any, loss: Loss | None = None, *, clip_grad: float | None = None
    ) -> Callable[[Any], torch.Tensor]:
        """Return a plain training step."""
        model.train()
        if isinstance(optimizer, torch.optim.LBFGS):
            return self._step_with_closure(model, optimizer, plain_loss(loss))
        return PlainStep(self, model, optimizer, plain_loss(loss), clip_grad)

    def _step_with_closure(self, model: nn.Module, optimizer: Any, loss: Loss) -> Callable[[Any], torch.Tensor]:
        def step(batch: Any) -> torch.Tensor:
            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                value = loss(model, moved(batch, self.device))
                value.backward()
                return value

            return optimizer.step(closure).detach()

        return step

    def casting(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass."""
        if self.arithmetic.autocast == "none":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.arithmetic.autocast))

    def callbacks(self, framework: str, folder: str) -> list[Any]:
        """Return the framework's callbacks that a tuned loop adds, with their files in a folder: none."""
        return []

    def infer(self, model: nn.Module) -> Callable[[Any], Any]:
        """Return a plain inference step: it runs in eval mode, and leaves every module in the mode that it had."""

        def step(inputs: Any) -> Any:
            with evaluating(model), torch.no_grad(), self.casting():
                inputs = moved(inputs, self.device)
                return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)

        return step


class PlainStep:
    """A training step as people write it; with its scaler's state, which belongs in a checkpoint."""

    def __init__(self, run: Run, model: nn.Module, optimizer: Any, loss: Loss, clip_grad: float | None) -> None:
        self._run, self._model, self._optimizer, self._loss, self._clip = run, model, optimizer, loss, clip_grad
        self.scaler = torch.amp.GradScaler(run.device.type, enabled=run.arithmetic.autocast == "float16")

    def __call__(self, batch: Any) -> torch.Tensor:
        """Run one step and return the detached loss."""
        batch = moved(batch, self._run.device)
        self._optimizer.zero_grad()
        with self._run.casting():
            value = self._loss(self._model, batch)
        self.scaler.scale(value).backward()
        if self._clip is not None:
            self.scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self.scaler.step(self._optimizer)
        self.scaler.update()
        return value.detach()


class TunedRun(Run):
    """The same calls under settings."""

    def __init__(self, device: torch.device, notebook: Notebook, settings: Mapping[str, Value]) -> None:
        super().__init__(device, notebook, Arithmetic())
        self._tuning = Tuning(settings)

    def prepare(self, *objects: Any) -> Any:
        """Return the objects with the settings applied."""
        return self._tuning.prepare(*objects)

    def train_step(
        self, model: nn.Module, optimizer: Any, loss: Loss | None = None, *, clip_grad: float | None = None
    ) -> Callable[[Any], torch.Tensor]:
        """Return the tuned training step."""
        return self._tuning.train_step(model, optimizer, loss, clip_grad=clip_grad)

    def callbacks(self, framework: str, folder: str) -> list[Any]:
        """Return the callback that applies the settings of a file."""
        path = Path(folder, "tuned.yaml")
        path.write_text(yaml.safe_dump(dict(self._tuning.settings)), encoding="utf-8")
        return [importlib.import_module(f"advisor.{framework}").TunedCallback(path)]

    def infer(self, model: nn.Module) -> Callable[[Any], Any]:
        """Return the tuned inference step."""
        return self._tuning.infer(model)


def plain_loss(loss: Loss | None) -> Callable[[nn.Module, Any], torch.Tensor]:
    """A loss of a model and a batch that is on the device, from either form that ``train_step`` takes."""
    if loss is None:
        return lambda model, batch: model(**batch)["loss"]
    if next(iter(inspect.signature(loss).parameters)) == "model":
        return loss

    def of_output(model: nn.Module, batch: Any) -> torch.Tensor:
        if isinstance(batch, Mapping):
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            return loss(model(**inputs), batch["labels"])
        return loss(model(*batch[:-1]), batch[-1])

    return of_output


def moved(batch: Any, device: torch.device) -> Any:
    """A batch on the device, as its owner would move it."""
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, dict):
        return {name: moved(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(value, device) for value in batch)
    if dataclasses.is_dataclass(batch):
        fields = {
            field.name: moved(getattr(batch, field.name), device) for field in dataclasses.fields(batch) if field.init
        }
        return dataclasses.replace(batch, **fields)
    return batch


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; every module in its own mode again afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def copied(state: Any) -> Any:
    """A nested state with its tensors copied to the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: copied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [copied(value) for value in state]
    try:
        return copy.deepcopy(state)
    except Exception:  # what cannot be copied is compared by its type
        return type(state).__name__
