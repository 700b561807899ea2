"""Stand-in until the merge."""

from advisor.step.compilation import *
from advisor.step.contexts import *
