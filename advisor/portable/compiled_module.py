"""A module compiled where it is: it keeps its identity, its class and the names in its state dict."""

import typing

import torch


def compile_in_place(module: torch.nn.Module, **options: typing.Any) -> None:
    """Compile what calling a module runs; ``options`` are those of torch.compile. A copy of it is not compiled.

    A model that generates text runs uncompiled while it decodes, as it does behind the wrapper of torch.compile: the
    sizes of its cache change with every token, and each would be compiled.
    """
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        compile_in_place(module.module, **options)  # its own forward starts the communication
        return
    compiled: typing.Any = torch.compile(frame_of(module), **options)
    module._compiled_call_impl = unless_decoding(module, compiled) if hasattr(module, "generate") else compiled


def frame_of(module: torch.nn.Module) -> typing.Callable[..., typing.Any]:
    """What a module's call runs, as a function whose frames the compiler takes."""
    if not getattr(type(module).forward, "__module__", "").startswith("torch.nn.") or "forward" in vars(module):
        return module._call_impl

    # Dynamo skips PyTorch's own frames unless they are called from another.
    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        return module._call_impl(*args, **kwargs)

    return call


def unless_decoding(module: torch.nn.Module, compiled: typing.Any) -> typing.Callable[..., typing.Any]:
    """The compiled call, but the plain one where a cache of keys and values is passed."""

    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        if kwargs.get("past_key_values") is not None:
            return module._call_impl(*args, **kwargs)
        return compiled(*args, **kwargs)

    vars(call)["get_compiler_config"] = compiled.get_compiler_config
    return call
