"""``perf-advisor TARGET``: runs a session, in the app or without it."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.cli.options import TOPICS
from advisor.cli.parser import Parser, check_export, given, launch_of, outputs_of, shows_the_app, target_of
from advisor.errors import ExitCode, UsageError
from advisor.experiment.request import DEFAULT_BUDGET_S, Outputs, Request, beside_own_files
from advisor.files.paths import DEMO
from advisor.process.interrupts import INTERRUPTS
from advisor.process.meanwhile import collector_waits
from advisor.records import Mode, TargetSpec
from advisor.records.secrets import arguments_without_secrets
from advisor.version import __version__

if TYPE_CHECKING:
    from advisor.experiment.past.journal import PastSession

_DEMO_BUDGET_S = 90.0


@dataclass(frozen=True, slots=True)
class Measure:
    """A session to run."""

    request: Request  # with an empty target, the target of the resumed session is measured
    outputs: Outputs
    headless: bool
    resume: str | None  # the session to resume; an empty string for the latest, None for a new session
    budget_s: float | None = None  # the new budget; None for the resumed session's budget
    force: bool = False  # whether to replace a file that holds the settings of another target

    def __call__(self) -> int:
        """Measure, in the app if there is a terminal, and return the exit code. Raises AdvisorError."""
        if self.outputs.config_path and self.outputs.key_map:  # report a wrong path now, not after measuring
            from advisor.export.config_patch import check_key_map
            from advisor.files.config_file import read_text

            check_key_map(read_text(self.outputs.config_path), self.outputs.key_map, self.outputs.config_path)
        request, past = self.wanted()
        request.check()
        outputs = beside_own_files(self.outputs, request)
        if not self.force:
            check_export(outputs, request.target)
        # After a signal the app is not opened: the outputs that were asked for are written at once.
        if not INTERRUPTS.asked and not self.headless and shows_the_app():
            with collector_waits():
                from advisor.tui.launch import open_app, run

            return run(open_app(request, outputs, past), past)
        from advisor.headless.run import run_headless

        return run_headless(request, outputs, past)

    def wanted(self) -> tuple[Request, PastSession | None]:
        """Return the request to measure and the session that it resumes. Options not given now are the session's.

        Raises UsageError if there is no such session, or if it measured something else.
        """
        if self.resume is None:
            return self.request, None
        from advisor.experiment.past.resuming import taken_up_request

        past = _past(self.resume, self.request.target)
        if not self.request.target.arguments:
            past.check_arguments()
        wanted = self.request.continuing(past.request)
        request = taken_up_request(wanted, past, config_given=self.request.config_path is not None)
        return (request if self.budget_s is None else replace(request, budget_s=self.budget_s)), past


def _past(session_id: str, wanted: TargetSpec) -> PastSession:
    """The session to resume: the named one, else the latest (of this target, if one is given). Raises UsageError."""
    from advisor.experiment.past.journal import list_sessions, open_session

    def is_wanted(past: PastSession) -> bool:
        """Whether a session measured the target and, if arguments are given, with the same arguments."""
        measured, (arguments, _) = past.request.target, arguments_without_secrets(wanted.arguments)
        return wanted.target in ("", measured.target) and arguments in ((), measured.arguments)

    if session_id or not wanted.target:
        past = open_session(session_id or None)
        if not is_wanted(past):
            wanted = replace(wanted, target=wanted.target or past.request.target.target)
            raise UsageError(
                f"the session {past.session_id} measured {past.request.target.command}, not {wanted.command}.",
                f"Leave the target out, or the session: `perf-advisor {wanted.target} --resume` resumes its latest.",
            )
        return past
    fitting = list(filter(is_wanted, list_sessions()))
    if not fitting:
        raise UsageError(f"there is no session of {wanted.command} to resume.", "`perf-advisor sessions` lists them.")
    return next((past for past in fitting if past.request.target.directory == wanted.directory), fitting[0])


def measure_parser(about: str) -> Parser:
    """Return the parser of all options of a session."""
    parser = Parser("", about, "TARGET", formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = "module:attr, path/file.py:attr, a script train.py, timm:NAME, hf:NAME, torchvision:NAME, or demo"
    parser.add("target", nargs="?", default="", help=kinds)
    parser.add_argument("--version", action="store_true", help="show what is installed, and exit")
    for name, (title, words, options) in TOPICS.items():
        parser.add(*options, group=parser.add_argument_group(f"{name}: {title}", textwrap.fill(words, 78)))
    return parser


def parse(arguments: Sequence[str], commands: Collection[str], about: str) -> Measure:
    """Return the session that a command line without a command asks for. ``about`` is the beginning of the help."""
    options = measure_parser(about).parse(arguments)
    if options.version:
        from advisor.machine.hardware import versions_line

        print(f"perf-advisor {__version__}\n{versions_line()}")
        raise SystemExit(ExitCode.OK)
    target, resume = options.target, options.resume
    if not target and resume and (":" in resume or resume == DEMO):  # `--resume TARGET` reads as `--resume SESSION`
        target, resume = resume, ""
    if target or resume is None:
        _check_is_no_command(target, commands)
    outputs, spec = outputs_of(options), target_of(target, options)
    request = given(
        Request,
        options,
        target=spec,
        budget_s=options.budget_s or (_DEMO_BUDGET_S if spec.target == DEMO else DEFAULT_BUDGET_S),
        launch=launch_of(options),
        config_path=str(Path(options.config_path).resolve()) if options.config_path and spec.target else None,
        key_map=dict(outputs.key_map),
        command=arguments_without_secrets(arguments)[0],
    )
    if request.latency_limit_ms is not None and spec.mode is Mode.TRAIN:
        raise UsageError("--latency-limit is for calls of a model in inference.", "Leave it out, or add --mode infer.")
    if request.gpus != 1 and ":" in spec.device:
        raise UsageError(
            f"--gpus asks for several GPUs, and --device {spec.device} for one.",
            "Leave one of them out; CUDA_VISIBLE_DEVICES chooses among several.",
        )
    headless = bool(options.headless) or outputs.json_to_stdout
    return Measure(request, outputs, headless, resume, options.budget_s, bool(options.force))


def _check_is_no_command(target: str, commands: Collection[str]) -> None:
    """Raise UsageError if there is no target, or if it is a command or a misspelt one."""
    if not target:
        raise UsageError("there is no target.", "Name one: `perf-advisor mymodel:build`, or `perf-advisor demo`.")
    words = [*commands, DEMO]
    close = difflib.get_close_matches(target, words, n=1, cutoff=0.8) if ":" not in target else []
    if close and target != DEMO:
        raise UsageError(
            f"{target!r} looks like a command, and commands come first.",
            f"Did you mean `perf-advisor {close[0]}`? A file of that name is ./{target}.py:build.",
        )
