"""Stand-in until the merge."""

from advisor.step.compilation import *
from advisor.step.compilation import compiled as compile_model
from advisor.step.contexts import *
