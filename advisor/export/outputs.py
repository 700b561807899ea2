"""Write the files for which the command line asked."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from advisor.errors import AdvisorError, UsageError
from advisor.experiment.request import STANDARD_OUTPUT, Outputs, Request
from advisor.experiment.state import SessionState
from advisor.export.files import write_atomically
from advisor.export.format import Found
from advisor.export.formats import FORMATS, format_for
from advisor.recipe.catalog import Catalog
from advisor.records import Exported

Verify = Callable[[Exported], None]


@dataclass(frozen=True, slots=True)
class Written:
    """The result: a sentence for each written output, and an error for each failed output."""

    sentences: tuple[str, ...]
    errors: tuple[AdvisorError, ...]


def write_outputs(
    state: SessionState, request: Request, outputs: Outputs, catalog: Catalog, verify: Verify | None = None
) -> Written:
    """Write every requested output. If one fails, the others are still written.

    A session that measured nothing writes only the JSON report; a session without a profile writes no trace.
    ``verify`` is called after the export is written, and before the reports, because they contain its result.
    """
    found = Found(state, request, outputs, catalog)
    wanted = [(path, format_for(option, path, outputs)) for option, path in outputs.files.items()]
    possible = [(path, form) for path, form in wanted if state.baseline or not form.needs_baseline]
    sentences: list[str] = []
    errors: list[AdvisorError] = []
    # Exports first, since the reports say whether they work. Standard output last, since its reader may be gone.
    for path, form in sorted(possible, key=lambda one: (one[0] == STANDARD_OUTPUT, not one[1].applies_settings)):
        try:
            files = list(form.files(found, path))
            for file in files:
                content = file.content()
                if file.path == STANDARD_OUTPUT and isinstance(content, str):
                    print(content, end="" if content.endswith("\n") else "\n", flush=True)
                else:
                    write_atomically(file.path, content)
                    sentences += [f"{file.title} written to {file.path}{file.remark}.", *file.more]
            sentences += [] if files else [form.missing]
            if verify and (exported := form.verifiable(found, path)):
                verify(exported)
        except AdvisorError as error:
            errors.append(error)
    if outputs.shows_diff and state.baseline:
        try:
            sys.stdout.write(diff_of(found))
        except AdvisorError as error:
            errors.append(error)
    if len(possible) < len(wanted):
        sentences.append("Nothing was measured, so there are no settings and no report to write.")
    return Written(tuple(sentences), tuple(errors))


def diff_of(found: Found) -> str:
    """The change of the user's config or own file as a diff. Raises AdvisorError if there is no such file."""
    offers = ((form, form.offer(found.outputs)) for form in FORMATS)
    shown = next((form for form, offer in offers if offer and offer.language == "diff"), None)
    if shown is None:
        raise UsageError("you named no file that a diff could show.", "Name a script, a build() or a --config FILE.")
    return shown.preview(found)
