"""`./cluster backup` and `./cluster restore`: a cluster's Slurm in a file here, or in a bucket."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cli.console.progress import Console
from cli.engine import lock
from cli.providers import login_machine, provider
from cli.providers.interface import HasController, need
from infra.errors import EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE, UserError
from infra.program.files import named
from node.backup import archive
from node.backup.archive import BackupError
from node.logs.text import printable
from node.system import foreign, plurals
from operations import programs
from operations.access import TOOL

if TYPE_CHECKING:
    from operations.access import StackUp

REFUSED = (
    "backup.not-root", "backup.no-bucket", "restore.other-cluster", "restore.release", "restore.accounting",
    "restore.not-empty", "restore.no-space", "restore.not-there", "restore.other-under-way",
    "restore.none", "restore.in-place", "restore.journal",
)  # fmt: skip
"""The codes of what the controller refuses before anything is changed."""


def make(up: StackUp, file: Path | None, *, bucket: bool) -> dict[str, Any]:
    """Take a backup, and return what `--json` shows.

    Args:
        file: Where it is written; `None` means a name with the cluster and the time, in this folder.
        bucket: Whether it goes to the bucket of the stack file instead.

    Raises:
        UserError: It was not taken; there is no file then.
    """
    controller = _controller(up, "backup")
    with lock.locked(up.stack, "backup", shared=True):
        return _make(controller, up, file, bucket=bucket)


def _make(controller: HasController, up: StackUp, file: Path | None, *, bucket: bool) -> dict[str, Any]:
    if bucket:
        if file is not None:
            raise UserError(
                f"--bucket writes to the bucket, and {file} is a file here: leave one of them out",
                EXIT_USAGE,
                code="backup.two-places",
            )
        return _answer(controller, up, ["backup", "--bucket"])
    folder = Path() if file is None else file.parent
    if file is not None and file.exists():
        raise UserError(f"{file} exists: name another file, or remove it", EXIT_USAGE, code="backup.exists")
    if not folder.is_dir():
        raise UserError(f"{file}: there is no folder {folder} here", EXIT_USAGE, code="backup.no-folder")
    # It is private from its first moment, and has its name only when it is complete and checked.
    handle, name = tempfile.mkstemp(prefix=".slurm-stacks-", suffix=archive.SUFFIX, dir=folder)
    draft = Path(name)
    try:
        with named(file or folder), os.fdopen(handle, "wb") as target:
            _run(controller, up, ["backup"], output=target)
            target.flush()
            os.fsync(target.fileno())
        try:
            manifest = archive.read(draft)
        except BackupError as error:
            raise UserError(
                f"the backup did not arrive whole, and is removed: {error}", code=error.code
            ) from None
        file = file or folder / manifest.name
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)
            return {"backup": manifest.as_json(), "file": str(file)}
        raise UserError(f"{file} exists: name another file, or remove it", EXIT_USAGE, code="backup.exists")
    finally:
        draft.unlink(missing_ok=True)


def list_all(up: StackUp) -> dict[str, Any]:
    """Return the backups in the bucket of the stack file, the newest first.

    Raises:
        UserError: There is no bucket, or it cannot be listed.
    """
    return _answer(_controller(up, "backup"), up, ["backup", "--list"])


def restore(up: StackUp, source: str | None, *, bucket: bool, replace: bool) -> dict[str, Any]:
    """Restore a backup into the cluster that is up, and return what `--json` shows.

    Args:
        source: A file here, or a name in the bucket; `None` means the newest there.
        bucket: Whether it is in the bucket of the stack file.
        replace: Whether to restore into a cluster that has had jobs.

    Raises:
        UserError: It is refused and nothing was changed, or the controller's boot failed with it.
    """
    controller = _controller(up, "restore")
    with lock.locked(up.stack, "restore"):
        return _restore(controller, up, source, bucket=bucket, replace=replace)


def _restore(
    controller: HasController, up: StackUp, source: str | None, *, bucket: bool, replace: bool
) -> dict[str, Any]:
    options = ["--replace"] if replace else []
    if bucket:
        words = ["restore", f"--bucket={source}" if source else "--bucket", *options]
        return _answer(controller, up, words, booting=True)
    if source is None:
        raise UserError(
            "name the backup's file, or take the newest in the bucket with --bucket",
            EXIT_USAGE,
            code="restore.no-source",
        )
    try:
        # What is damaged is not sent.
        archive.read(Path(source))
        stream = Path(source).open("rb")  # noqa: SIM115 - closed below
    except BackupError as error:
        raise UserError(str(error), EXIT_REFUSED, code=error.code) from None
    except FileNotFoundError:
        raise UserError(f"{source}: there is no such file here", EXIT_USAGE, code="restore.no-file") from None
    with stream:
        # A controller whose boot fails with what was restored is helped by another restore only.
        return _answer(controller, up, ["restore", *options], stream, booting=True)


def cancel(up: StackUp, source: str | None, *, bucket: bool, replace: bool) -> dict[str, Any]:
    """Give up a restore, also on a controller whose boot fails, and return what `--json` shows.

    Raises:
        UserError: A backup is named, too; there is no restore, or it is in its place.
    """
    controller = _controller(up, "restore")
    if source is not None or bucket or replace:
        raise UserError(
            "--cancel gives up the restore that is under way: it takes no backup and no other option",
            EXIT_USAGE,
            code="restore.cancel-alone",
        )
    return _answer(controller, up, ["restore", "--cancel"], booting=True)


def _controller(up: StackUp, verb: str) -> HasController:
    return need(provider.of(up), HasController, up, verb)


def _answer(
    controller: HasController,
    up: StackUp,
    words: Sequence[str],
    text: IO[bytes] | None = None,
    *,
    booting: bool = False,
) -> dict[str, Any]:
    """Return the command's answer.

    Raises:
        UserError: It failed, or answers in a form that this version does not know.
    """
    answer = _run(controller, up, words, text=text, booting=booting)
    try:
        told = foreign.parse_strictly(answer)
        if not isinstance(told, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise UserError(
            f"the controller did {words[0]}, and its answer cannot be read: {printable(str(error))}",
            code="backup.answer",
        ) from None
    return told


def _run(
    controller: HasController,
    up: StackUp,
    words: Sequence[str],
    *,
    text: IO[bytes] | None = None,
    output: IO[bytes] | None = None,
    booting: bool = False,
) -> str:
    """Run the cluster's own command on its controller, show its progress, and return what it printed.

    Args:
        text: Its standard input.
        output: Where its standard output goes instead.
        booting: Whether a controller is asked whose boot has failed, too.

    Raises:
        UserError: It failed; the message and the code are its own.
    """
    command = controller.on_controller(up, [TOOL, *words], booting=booting)
    console = Console()
    failure: dict[str, str] = {}

    def tell(line: str) -> None:
        with contextlib.suppress(ValueError):
            told = foreign.parse_strictly(line)
            if isinstance(told, dict) and {"code", "message"} <= told.keys():
                failure.update(code=str(told["code"]), message=str(told["message"]))
                return
        if line:
            console.say(line)

    environment = login_machine.environment_of(command)
    done = programs.transfer(command.argv, env=environment, source=text, target=output, on_line=tell)
    if done.failed:
        code = failure.get("code", f"{words[0]}.failed")
        last = done.err.strip().rpartition("\n")[2] or "nothing"
        message = failure.get("message") or (
            f"the command on the controller ended with status {done.status}, and said last: {last}"
        )
        raise UserError(message, EXIT_REFUSED if code in REFUSED else EXIT_FAILED, code=code)
    return done.out


def show(found: dict[str, Any], *, as_json: bool) -> None:
    """Print what a command has done, as sentences or as JSON."""
    if as_json:
        print(json.dumps(found, indent=1))
        return
    if "names" in found:
        print("\n".join(found["names"]) or f"{found['bucket']} has no backup of this cluster")
        return
    if "cancelled" in found:
        before = "; the state of before is in force again" if found["moved_back"] else "; nothing was changed"
        print(f"the restore is given up{before}")
        return
    manifest = found["backup"]
    when = archive.when(manifest["created"])
    size = f"{manifest['size'] / 2**20:.1f} MiB"
    jobs = plurals.count(manifest["jobs"], "job")
    accounting = "with" if manifest["accounting"] else "without"
    if "next_job_id" in found:
        print(
            f"restored cluster {manifest['cluster']} as of {when}, {accounting} its accounting: {jobs} "
            f"that had not ended; the next job is {found['next_job_id']}"
        )
        return
    if "file" in found:
        place = f"{found['file']} (for you alone: it has secrets of all users' jobs)"
    else:
        place = f"{found['bucket'].rstrip('/')}/{found['name']}"
    print(
        f"cluster {manifest['cluster']} as of {when}, {jobs} that had not ended, {accounting} its "
        f"accounting, {size}:"
    )
    print(place)
