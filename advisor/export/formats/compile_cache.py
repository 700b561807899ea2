"""PyTorch's compile cache as an export format, so that the next start does not compile again."""

from collections.abc import Iterable

from advisor.errors import UsageError
from advisor.export.format import File, Format, Found
from advisor.figures.formatting import format_seconds


class CompileCache(Format):
    """PyTorch's cache artifacts from the first steps of the target's loop with the settings."""

    option = "--export"
    brief = ".cache (what PyTorch compiled, for a fast start)"
    suffixes = (".cache",)
    order = 36

    def files(self, found: Found, path: str) -> Iterable[File]:
        if found.state.finished is None or found.state.finished.cancelled:
            raise UsageError(f"{path}: the session did not run to its end.", "Continue it with --resume.")
        if not found.catalog.compiles(found.settings):
            raise UsageError(f"{path}: the settings that won compile nothing.", "Export only the settings: tuned.yaml.")
        from advisor.experiment.measuring.packaging import warm_start

        artifacts, cold_s, warm_s = warm_start(found.request, found.settings, found.catalog)
        said = f"The first steps take {format_seconds(warm_s)} with it, {format_seconds(cold_s)} without it."
        yield File("Compile cache", path, lambda: artifacts, found.remark, more=(said,))

    def to_verify(self, found: Found, path: str) -> None:
        return None
