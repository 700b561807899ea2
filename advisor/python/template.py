"""The template of the exported Python file: header, functions and the class of its step, as in ``template.txt``.

A line that ends in ``#?`` and words is written, with the block that it opens, where all of them hold; ``!word`` where
one does not. Where the words after ``#=`` do not hold, the block stands alone, one level further out. Names in capitals
between ``<`` and ``>`` are expressions, or lines, that depend on the workload; one that is not empty is a word too.
"""

import re
from pathlib import Path

_TEXT = Path(__file__).with_name("template.txt").read_text(encoding="utf-8")
_PARTS = dict(re.findall(r"^=== ([A-Z]+)\n(.*?)(?=^=== |\Z)", _TEXT, re.MULTILINE | re.DOTALL))
HEADER, CONSTANTS, FUNCTIONS, PREPARE, UPDATE, STEP = (
    _PARTS[name].strip("\n") for name in ("HEADER", "CONSTANTS", "FUNCTIONS", "PREPARE", "UPDATE", "STEP")
)
