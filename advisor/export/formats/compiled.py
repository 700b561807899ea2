"""The format for the tuned model as one compiled file."""

from collections.abc import Iterable

from advisor.errors import UsageError
from advisor.export.format import File, Format, Found
from advisor.records import Mode


class CompiledModel(Format):
    """The model with its weights and the winning settings, compiled by AOTInductor. It runs without its source code."""

    option = "--export"
    brief = ".pt2 (the compiled model, for inference)"
    suffixes = (".pt2",)
    order = 35

    def files(self, found: Found, path: str) -> Iterable[File]:
        if found.state.facts is not None and found.state.mode is not Mode.INFER:
            raise UsageError(
                f"{path}: a model file is for inference, but this session measured training.",
                "Measure it with --mode infer, or export the settings: --export tuned.yaml.",
            )
        if found.state.finished is None or found.state.finished.cancelled:
            raise UsageError(f"{path}: the session did not run to its end.", "Continue it with --resume.")
        from advisor.experiment.measuring.packaging import package

        content = lambda: package(found.request, found.settings, found.catalog)  # noqa: E731
        yield File("Compiled model", path, content, found.remark, more=_where_it_runs(found))


def _where_it_runs(found: Found) -> tuple[str, ...]:
    facts, size = found.state.facts, found.settings.get("data.batch_size")
    if facts is None:
        return ()
    workload = facts.workload
    samples = size or workload.batch_size
    batches = f"batches of exactly {samples}" if samples else "batches of exactly the measured shape"
    return (
        f"It runs on devices of the same kind ({workload.device_name}) and takes {batches}. Load it by "
        f"torch._inductor.aoti_load_package with PyTorch {facts.versions.get('torch', 'of the same version')}.",
    )
