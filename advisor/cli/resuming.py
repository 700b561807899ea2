"""The session that ``--resume`` continues, and the request to measure. Another workload than its own is refused."""

from dataclasses import replace

from advisor.errors import UsageError
from advisor.experiment.past.journal import PastSession, list_sessions, open_session
from advisor.experiment.past.sameness import taken_up_request
from advisor.experiment.request import Request
from advisor.records import TargetSpec
from advisor.records.secrets import arguments_without_secrets


def resumed(session_id: str, asked: Request) -> tuple[Request, PastSession]:
    """The request to measure, and the session to resume. A target and options not given are that session's.

    Raises UsageError where there is no such session, or where it measured something else.
    """
    past = _past(session_id, asked.target)
    if not asked.target.arguments:
        past.check_arguments()
    wanted = asked.continuing(past.request)
    return taken_up_request(wanted, past, config_given=asked.config_path is not None), past


def _past(session_id: str, wanted: TargetSpec) -> PastSession:
    """The session to resume: the one named, or the latest, of this target if there is one. Raises UsageError."""
    if session_id or not wanted.target:
        past = open_session(session_id or None)
        wanted = replace(wanted, target=wanted.target or past.request.target.target)
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
