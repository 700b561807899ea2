"""The version of perf-advisor, in a separate module because our modules must not import the package itself."""

__version__ = "0.2.0"
