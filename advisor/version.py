"""The version of perf-advisor, for its modules: the package itself stands above all of them."""

__version__ = "0.2.0"
