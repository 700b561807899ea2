"""The cache of keys and values that a Hugging Face model keeps while it generates, chosen in its configuration."""

import typing

STATIC = {"static": True, "static_compiled": False}


def choose_cache(model: typing.Any, value: str) -> None:
    """Have ``model.generate`` use a cache of this kind: ``dynamic``, ``static`` or ``static_compiled``.

    With a static cache transformers compiles the model's forward pass by itself on a GPU; elsewhere it has to be told.
    """
    config = getattr(model, "generation_config", None)
    if config is None:
        return
    config.cache_implementation = "static" if value in STATIC else None
    config.disable_compile = STATIC.get(value, False)
    config.compile_config = None
    if value == "static_compiled" and next(model.parameters()).device.type == "cpu":
        from transformers.generation.configuration_utils import CompileConfig

        config.compile_config = CompileConfig(mode="default")
        config.compile_config._compile_all_devices = True


def cache_of(model: typing.Any) -> str:
    """The kind of cache that ``model.generate`` uses."""
    config = getattr(model, "generation_config", None)
    if config is None or config.cache_implementation != "static":
        return "dynamic"
    return "static" if config.disable_compile else "static_compiled"
