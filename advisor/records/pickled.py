"""The name of a file with the workload that ``advisor.tune`` was called with, for the processes that measure it."""

SUFFIX = ".workload"
