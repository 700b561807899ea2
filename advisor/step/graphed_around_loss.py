"""A training step captured in two CUDA graphs, before and after its loss. PyTorch documentation, CUDA semantics."""

from typing import Any

import torch

from advisor.step.capturing import CudaGraph, own_copy
from advisor.step.graphed import GraphedStep
from advisor.step.nested import map_tensors, tensors_of
from advisor.step.steps import TrainStep
from advisor.step.walk import found_in


class GraphedAroundLoss(GraphedStep):
    """A captured training step whose loss is computed eagerly, for a loss that the host has a part in.

    One graph has the forward pass, the other the model's backward pass, which begins with the loss's gradients of the
    outputs. The loss may look at values, match boxes or read lengths as it likes. The update is made eagerly too. As
    with ``torch.cuda.make_graphed_callables``, of which this is the form that watches what a graph cannot follow.
    """

    _captures_loss = False
    _update_inside = False

    def __init__(self, step: TrainStep, graph: Any = None, backward: Any = None) -> None:
        super().__init__(step, graph)
        self._backward = backward or CudaGraph(step.device)
        self._outputs: list[torch.Tensor] = []  # the forward graph's, of those with gradients
        self._seeds: list[torch.Tensor] = []  # the loss's gradients of the leaves, which the backward graph reads
        self._loss: torch.Tensor | None = None

    def _computed(self, batch: Any) -> Any:
        return self.step.forward(batch)

    def _capture(self, batch: Any) -> bool:
        was_captured = self._was_captured
        if not super()._capture(batch):
            return False
        if reason := self._read_beside_outputs():
            self._drop(reason)
            self._was_captured = was_captured
            if not was_captured:
                raise ValueError(reason)
            return False
        return True

    def _read_beside_outputs(self) -> str:
        """A sentence on a tensor that the loss goes back from and that is no output; empty for none."""
        assert self._left is not None, "noted by the capture"
        read = found_in(getattr(self.step, "loss_function", None)).places
        for space, name, value in self._left.left:
            if (id(space), name) in read and any(one.requires_grad for one in tensors_of(value)):
                place = repr(name) if isinstance(name, str) else "a container"
                return f"the loss reads {place}, which the forward pass sets: it cannot stay outside the graphs"
        return ""

    def _capture_step(self, step: TrainStep) -> None:
        if not step.loss_is_apart:
            raise ValueError("the loss calls the model or is compiled with it: it cannot stay outside the graphs")
        self.graph.capture(lambda: step.forward(self._static_batch))
        self._outputs = list({id(t): t for t in tensors_of(self.graph.result) if t.requires_grad}.values())
        self._seeds = [torch.zeros_like(output) for output in self._outputs]
        self._backward.capture(lambda: torch.autograd.backward(self._outputs, self._seeds))

    def _replay_step(self) -> None:
        step = self.step
        assert isinstance(step, TrainStep), "a step that infers has no loss"
        self.graph.replay()
        for parameter in step.parameters:
            parameter.grad = None
        # A loss may keep what it gets, as a memory bank does, and replays overwrite the graph's own.
        result = self.graph.result
        copies = {id(one): one.detach().clone().requires_grad_(one.requires_grad) for one in tensors_of(result)}
        output = map_tensors(lambda tensor: copies[id(tensor)], result)
        loss = step.loss(output, map_tensors(own_copy, self._static_batch))
        step.backward(loss)
        for one, seed in zip(self._outputs, self._seeds, strict=True):
            gradient = copies[id(one)].grad
            seed.zero_() if gradient is None else seed.copy_(gradient)
        self._backward.replay()
        # A loss may reach parameters by itself too, as one that holds weights down or has some of its own.
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if parameter.grad is not None:
                gradient.add_(parameter.grad)
        self._loss = loss.detach()

    @property
    def _result(self) -> Any:
        return self._loss

    def _drop(self, reason: str) -> None:
        super()._drop(reason)
        self._outputs, self._seeds = [], []
        self._backward.drop()
