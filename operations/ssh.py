"""The commands of `OpenSshShell`'s resources on the engineer's machine: `operations.ssh VERB …`.

The login machine is given in the environment (`target.VARIABLE`), so that a change of it does not change the
resource's command line. Every verb is idempotent; its result is on standard output.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from infra import bundle
from infra.benchmark import Workload
from infra.errors import EXIT_INTERRUPTED, UserError
from infra.ssh import VARIABLE, Target, parse
from operations import guard as guards
from operations import openssh, programs
from operations.login_lines import (
    CANCEL_SECONDS,
    NOT_CANCELLED,
    cancel_line,
    submit_line,
    unpack_line,
    wait_line,
)

STAGE_SECONDS = 300.0
SUBMIT_SECONDS = 120.0
GUARD_SECONDS = 60.0
MARGIN_SECONDS = 60.0
"""How much longer than its own limit a wait on the login machine may take."""


def named(target: Target) -> Target:
    """Return the target with the user's login name. On some clouds a command returns this name.

    Raises:
        UserError: That command failed; the message is the command's.
    """
    if target.ask is None:
        return target
    answer = programs.capture(shlex.split(target.ask))
    if answer.failed:
        raise UserError(
            answer.err.strip() or f"`{target.ask}` ended with status {answer.status}", code="ssh.tool-failed"
        )
    return replace(target, user=str(json.loads(answer.out)["login_user"]), ask=None)


def environment(target: Target, options: argparse.Namespace) -> str:
    """Wait for the training environment."""
    line = wait_line(options.apps, options.digest, options.seconds)
    return openssh.run(target, line, seconds=options.seconds + MARGIN_SECONDS, stream=True)


def stage(target: Target, options: argparse.Namespace) -> str:
    """Send the workload, if it is still the one with the requested digest."""
    project = Path(os.environ.get("SLURM_STACKS_PROJECT", ".")).resolve()
    workload = Workload.of(project, options.own)
    if workload.digest != options.digest:
        what = options.own[0] if options.own else f"{project}/workload"
        raise UserError(
            f"{what} was changed while it was being staged: run the command again", code="stage.changed"
        )
    archive = workload.archive()
    line = unpack_line(options.shared, options.staged, bundle.digest(archive))
    return openssh.run(target, line, stdin=base64.encodebytes(archive).decode(), seconds=STAGE_SECONDS)


def submit(target: Target, options: argparse.Namespace) -> str:
    """Submit the script on standard input; the result is the job's id."""
    line = submit_line(options.tool, options.run)
    return openssh.run(target, line, stdin=sys.stdin.read(), seconds=SUBMIT_SECONDS)


def cancel(target: Target, options: argparse.Namespace) -> str:
    """Cancel the run's job if the login machine answers soon: a destroy must go on without it."""
    limit = target.connect_seconds + CANCEL_SECONDS + 5.0
    line = cancel_line(options.tool, options.run)
    try:
        return openssh.run(replace(named(target), patience=0), line, seconds=limit, stream=True)
    except UserError as error:
        print(f"{NOT_CANCELLED} ({error})", file=sys.stderr)
        return ""


def guard(target: Target, options: argparse.Namespace) -> str:
    """Fail if the cluster has jobs that have not ended, or does not answer."""

    def ask() -> str:
        line = f"{shlex.quote(options.tool)} status"
        return openssh.run(replace(named(target), patience=0), line, seconds=GUARD_SECONDS)

    guards.check(ask)
    return ""


VERBS = {"environment": environment, "stage": stage, "submit": submit, "cancel": cancel, "guard": guard}
OPTIONS = {
    "environment": ("apps", "digest", "seconds"),
    "stage": ("shared", "staged", "digest"),
    "submit": ("tool", "run"),
    "cancel": ("tool", "run"),
    "guard": ("tool",),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, names in OPTIONS.items():
        verb_parser = verbs.add_parser(verb)
        for name in names:
            verb_parser.add_argument(f"--{name}", required=True, type=int if name == "seconds" else str)
        if verb == "stage":
            verb_parser.add_argument("own", nargs="*", help="the files of a user's program, its script first")
    options = parser.parse_args()
    try:
        target = parse(os.environ.get(VARIABLE))
        if options.verb not in ("cancel", "guard"):
            target = named(target)
        print(VERBS[options.verb](target, options).rstrip("\n"))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
