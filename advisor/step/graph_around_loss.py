"""A training step captured in two CUDA graphs, before and after its loss. PyTorch documentation, CUDA semantics."""

from typing import Any

import torch

from advisor.step.batch import map_tensors, tensors_of
from advisor.step.graph import GraphedStep, Recorded, own_copy
from advisor.step.loss import LossForm
from advisor.step.near import Place, numbers_of_modules


class GraphedAroundLoss(GraphedStep):
    """A captured training step whose loss is computed eagerly, for a loss that the host has a part in.

    One graph has the forward pass, the other the model's backward pass, which begins with the loss's gradients of the
    outputs. The loss may look at values, match boxes or read lengths as it likes. The update is made eagerly too. As
    with ``torch.cuda.make_graphed_callables``, but for outputs of any structure.
    """

    @property
    def _updates_inside(self) -> bool:
        return False

    def _places(self) -> list[Place]:
        return numbers_of_modules(self.step.model)

    def _capture_calls(self, recorded: Recorded, beside: Any) -> None:
        if self.step.call.form is LossForm.MODEL_BATCH or self.step.plan.compiles_loss:
            raise ValueError("the loss calls the model or is compiled with it: it cannot stay outside the graphs")
        recorded.graph.capture(lambda: self.step.forward(recorded.batch), (), beside)
        found = {id(one): one for one in tensors_of(recorded.graph.result) if one.requires_grad}
        recorded.outputs = list(found.values())
        recorded.seeds = [torch.zeros_like(output) for output in recorded.outputs]
        recorded.backward = self._make_graph(self.device)
        recorded.backward.capture(lambda: torch.autograd.backward(recorded.outputs, recorded.seeds), (), recorded.graph)

    def _replay_calls(self, recorded: Recorded) -> Any:
        recorded.graph.replay()
        for parameter in self.step.parameters:
            parameter.grad = None
        # A loss may keep what it gets, and replays overwrite the graph's own.
        result = recorded.graph.result
        copies = {id(one): one.detach().clone().requires_grad_(one.requires_grad) for one in tensors_of(result)}
        output = map_tensors(lambda tensor: copies[id(tensor)], result)
        loss = self.step.loss(output, map_tensors(own_copy, recorded.batch))
        self.step.backward(loss)
        for one, seed in zip(recorded.outputs, recorded.seeds, strict=True):
            gradient = copies[id(one)].grad
            seed.zero_() if gradient is None else seed.copy_(gradient)
        recorded.backward.replay()
        # A loss may reach parameters by itself too, as one that holds weights down or has some of its own.
        for parameter, gradient in recorded.gradients:
            if parameter.grad is not None:
                gradient.add_(parameter.grad)
        return loss.detach()
