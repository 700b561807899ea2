"""The version of perf-advisor, for its modules, which must not import the package itself."""

__version__ = "0.2.0"
