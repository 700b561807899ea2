"""Stand-in until the merge."""

from advisor.step.launched import *
from advisor.step.parallel import *
