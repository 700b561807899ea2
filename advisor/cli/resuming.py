"""The session that ``--resume`` continues, and the request to measure. Another workload than its own is refused."""

import sys

from advisor.errors import UsageError
from advisor.experiment.past.journal import PastSession, list_sessions, open_session
from advisor.experiment.past.sameness import taken_up_request
from advisor.experiment.request import Request
from advisor.figures.formatting import plain
from advisor.records import TargetSpec
from advisor.records.secrets import arguments_without_secrets


def resumed(session_id: str, asked: Request | None, *, anew: bool) -> tuple[Request, PastSession | None]:
    """The request to measure, and the session to resume; None for a new one. Options not given are that session's.

    Raises UsageError where there is no such session; where it measured something else too, unless ``anew``.
    """
    past = _past(session_id, asked)
    if asked is None or not asked.target.arguments:
        past.check_arguments()
    request = past.request if asked is None else asked.continuing(past.request)
    config_given = asked is not None and asked.config_path is not None
    request, changed = taken_up_request(request, past, config_given=config_given)
    if not changed:
        return request, past
    measured_else = f"the session {past.session_id} measured something else: {changed}."
    if not anew:
        raise UsageError(measured_else, "Undo that, or measure anew: add --anew to --resume.")
    print(f"measuring anew: {plain(measured_else)}", file=sys.stderr)
    return request, None


def _past(session_id: str, request: Request | None) -> PastSession:
    """The session to resume: the one named, or the latest, of this target if there is one. Raises UsageError."""
    if request is None:
        return open_session(session_id or None)
    wanted = request.target
    if session_id:
        past = open_session(session_id)
        if not _is_of(wanted, past.request.target):
            raise UsageError(
                f"the session {past.session_id} measured {past.request.target.command}, not {wanted.command}.",
                f"Leave the target out, or the session: `perf-advisor {wanted.target} --resume` resumes its latest.",
            )
        return past
    fitting = [past for past in list_sessions() if _is_of(wanted, past.request.target)]
    here = [past for past in fitting if past.request.target.directory == wanted.directory]
    if not fitting:
        raise UsageError(
            f"there is no session of {wanted.command} to resume.", "`perf-advisor sessions` lists what there is."
        )
    return (here or fitting)[0]


def _is_of(wanted: TargetSpec, measured: TargetSpec) -> bool:
    """Whether a session of one target measures another; arguments that are left out are the session's."""
    arguments, _ = arguments_without_secrets(wanted.arguments)
    return wanted.target == measured.target and arguments in ((), measured.arguments)
