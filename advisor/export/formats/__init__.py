"""The registry of export formats: every file of this folder is one. See ``export/format.py`` for the contract."""

import pkgutil
from importlib import import_module

from advisor.errors import UsageError
from advisor.experiment.request import Outputs
from advisor.export.format import Format
from advisor.figures.options import alternatives


def discovered() -> tuple[Format, ...]:
    """All formats of the folder, in the order of the app's list."""
    for info in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{info.name}")
    return tuple(sorted((kind() for kind in Format.__subclasses__()), key=lambda each: each.order))


FORMATS = discovered()


def format_of(format_id: str) -> Format:
    """The format of this id."""
    return next(each for each in FORMATS if each.id == format_id)


def formats_of(option: str) -> tuple[Format, ...]:
    """The formats whose file a command-line option names."""
    return tuple(each for each in FORMATS if each.option == option)


def format_for(option: str, path: str, outputs: Outputs) -> Format:
    """The format that an option means by a path: one with its ending, else the first for any ending.

    Raises UsageError where there is none: another program would take the file for something else.
    """
    every = formats_of(option)
    fitting = [each for each in every if path.lower().endswith(each.suffixes or ("",)) and each.serves(outputs, path)]
    if not fitting:
        endings = alternatives([*dict.fromkeys(suffix for each in every for suffix in each.suffixes)])
        raise UsageError(f"{option}: the name {path} does not say what to write.", f"Name one that ends in {endings}.")
    return min(fitting, key=lambda each: not each.suffixes)
