"""Batches of the user's own classes."""

from collections import UserDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

Pair = namedtuple("Pair", ["images", "labels"])


@dataclass(frozen=True)
class Sample:
    image: Any
    name: str = "a"
    nested: dict[str, Any] = field(default_factory=dict)


class Encoding(UserDict):
    """A mapping that is no dict, as Hugging Face's BatchEncoding."""
