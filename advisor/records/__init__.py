"""Frozen records: everything that crosses a process, a module or a file boundary.

Units are in the names: ``_s`` seconds, ``_ms`` milliseconds, ``_bytes`` bytes. A comment beside a field says what its
name does not. Nothing here imports torch.
"""

from advisor.records.hardware import *
from advisor.records.kinds import *
from advisor.records.messages import *
from advisor.records.trials import *
from advisor.records.workload import *
