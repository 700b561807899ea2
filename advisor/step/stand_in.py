"""Objects that stand as the ``forward`` among a module's own attributes, in place of that of its class."""

import types

import torch


class StandInForward:
    """A forward pass of a module.

    Who asks for its signature or its code, as to split a batch or to export the model, gets those of the class's own.
    """

    module: torch.nn.Module

    @property
    def __wrapped__(self) -> types.MethodType:
        return types.MethodType(type(self.module).forward, self.module)

    @property
    def __code__(self) -> types.CodeType:
        return self.__wrapped__.__code__
