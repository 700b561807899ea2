"""Finds arguments that look like secrets, by name or by value. They are shown and recorded as ``***``."""

import re
from collections.abc import Sequence
from itertools import pairwise

HIDDEN = "***"
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = re.compile(
    "password|passwd|pwd|passphrase|secrets?|credentials?|apikey|bearer|authorization|dsn|"
    # Two words that end in "key" or "token". `pad_token` and `max_tokens` belong to a model and are no secrets.
    "(api|access|secret|private|account|encryption|signing|ssh) key|"
    "(hf|api|auth|access|hub|huggingface|refresh|bearer|github|gh|gitlab|wandb|session|user|id|login|security) token"
)
_SECRET_VALUE = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\bsk-[\w-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bxox[abprs]-[\w-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+|://[^/\s:@]*:[^/\s@]+@|-----BEGIN [A-Z ]*PRIVATE KEY"
)
_OPTION = re.compile(r"(-{0,2}[\w.+-]+)=(.*)", re.DOTALL)


def names_a_secret(name: object) -> bool:
    """Whether values of this name are usually secret: ``hub_token``, ``apiKey``, ``db.password``."""
    words = [word.lower() for word in _WORDS.findall(str(name))]
    pairs = map(" ".join, pairwise(words))
    return words == ["token"] or any(_SECRET_WORDS.fullmatch(text) for text in (*words, *pairs))


def arguments_without_secrets(arguments: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A command line with probable secrets hidden, and the names of their options."""
    shown, withheld = list[str](), list[str]()
    before = ""
    for argument in arguments:
        option = _OPTION.fullmatch(argument)
        follows = before.startswith("-") and names_a_secret(before) and not argument.startswith("-")
        if option and option[2] and (names_a_secret(option[1].rpartition(".")[2]) or _SECRET_VALUE.search(option[2])):
            shown.append(f"{option[1]}={HIDDEN}")
            withheld.append(option[1])
        elif follows or _SECRET_VALUE.search(argument):
            shown.append(HIDDEN)
            withheld.append(before or "an argument")
        else:
            shown.append(argument)
        before = "" if option else argument
    return tuple(shown), tuple(withheld)
