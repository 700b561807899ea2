"""The registry of export formats: each file in this folder is a format. ``export/format.py`` has the base class."""

import pkgutil
from importlib import import_module

from advisor.errors import UsageError
from advisor.experiment.request import Outputs
from advisor.export.format import Format
from advisor.figures.options import alternatives


def discovered() -> tuple[Format, ...]:
    """All formats in the folder, in the order of the app's list."""
    for info in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{info.name}")
    return tuple(sorted((kind() for kind in Format.__subclasses__()), key=lambda each: each.order))


FORMATS = discovered()


def format_of(format_id: str) -> Format:
    """The format with this id."""
    return next(each for each in FORMATS if each.id == format_id)


def formats_of(option: str) -> tuple[Format, ...]:
    """The formats that a command-line option can write."""
    return tuple(each for each in FORMATS if each.option == option)


def format_for(option: str, path: str, outputs: Outputs) -> Format:
    """The format for an option's path: a format with the path's ending, else the first format for any ending.

    Raises UsageError if there is none, since other programs would misread a file with that ending.
    """
    every = formats_of(option)
    fitting = [each for each in every if path.lower().endswith(each.suffixes or ("",)) and each.serves(outputs, path)]
    if not fitting:
        endings = alternatives([*dict.fromkeys(suffix for each in every for suffix in each.suffixes)])
        raise UsageError(f"{option}: {path} has no ending of a known format.", f"Name a file that ends in {endings}.")
    return min(fitting, key=lambda each: not each.suffixes)
