"""The record of a user's clusters: one file for each in the user's state folder.

`./cluster list` reads it. It finds a cluster whose checkout was deleted, so that `down --cluster` can end it.
It also tells a checkout that was moved from one that was copied: both bring a state with the id of a cluster
that was recorded elsewhere, and only beside a copy the original still has that state.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from infra import os_errors
from infra.errors import EXIT_REFUSED, UserError
from infra.program import locations
from infra.program.files import write_atomically
from infra.program.stack import Stack
from node.system import foreign


@dataclass(frozen=True, slots=True)
class Cluster:
    """One recorded cluster.

    Attributes:
        id: Its id, which names its run directory on the local stack.
        checkout: The real path of the checkout that it belongs to.
        provider: `local`, `aws` or `gcp`.
        since: When it was first brought up, in seconds since the epoch.
        places: For a cloud, the clusters that the stack has made and that may still exist
            (`infra.clouds.commands.ClusterRef`, as plain data).
        organization: The organization of its stack in Pulumi's backend; `None` if no command has named one.
    """

    id: str
    stack: str
    checkout: str
    provider: str
    since: float
    places: list[dict[str, Any]] = field(default_factory=list)
    organization: str | None = None

    @property
    def home(self) -> Stack:
        """The stack in its checkout."""
        return Stack(Path(self.checkout), self.stack, self.organization)

    @property
    def gone(self) -> bool:
        """Whether its checkout no longer has it: the checkout, or the state in it, was deleted or moved."""
        try:
            return locations.recorded_id(self.home) != self.id
        except OSError:  # a folder above it cannot be read, so this is not known
            return False

    @property
    def run_dir(self) -> Path:
        """The folder of the running cluster on the local stack."""
        return locations.run_root() / self.id

    @property
    def file(self) -> Path:
        """The file with this record."""
        return _file(self.id)

    @property
    def down_command(self) -> str:
        """The command that ends it from any checkout."""
        return f"./cluster down --cluster {self.id}"


def recorded() -> list[Cluster]:
    """Return this user's clusters, oldest first. A damaged record is left out."""
    records = [_read(file) for file in _folder().glob("*.json")]
    return sorted((each for each in records if each is not None), key=lambda each: (each.since, each.id))


def of(stack: Stack) -> Cluster | None:
    """Return the record of a stack's cluster; `None` if there is none."""
    return _read(_file(locations.cluster_id(stack)))


def copied(stack: Stack) -> str | None:
    """Return the message about a state that was copied from a checkout that still has it, else `None`."""
    try:
        known = locations.recorded_id(stack)
    except OSError as error:
        raise os_errors.explain(error, locations.state_dir(stack)) from error
    record = None if known is None else _read(_file(known))
    if record is None or _same_folder(Path(record.checkout), stack.project) or record.gone:
        return None
    state = locations.state_dir(stack)
    return (
        f"{stack.project.resolve()} is a copy of {record.checkout}, and has the state of its stack "
        f"{stack.name}, whose cluster belongs to that checkout. Work there; or remove the copied state "
        f"(rm -r {shlex.quote(str(state))}), and this checkout gets a cluster of its own."
    )


def follow(stack: Stack) -> None:
    """Record the present path of a checkout that was moved, and refuse one that is a copy.

    Raises:
        UserError: Exit 3. The state was copied from another checkout, which still has it; or it belongs to
            another user.
    """
    if problem := copied(stack):
        raise UserError(problem, EXIT_REFUSED, code="checkout.copied")
    known = locations.recorded_id(stack)
    record = None if known is None else _read(_file(known))
    if record is None or _same_folder(Path(record.checkout), stack.project):
        return
    with contextlib.suppress(OSError):  # only `list` would name the old path
        _write(replace(record, checkout=str(stack.project.resolve())))


def note(stack: Stack, provider: str, state: Path, place: dict[str, Any] | None = None) -> None:
    """Record a cluster, before anything of it is made, and give its stack an id.

    Args:
        state: The stack's state folder.
        place: What `Cluster.places` gets.

    Raises:
        UserError: A file cannot be written.
    """
    checkout = str(stack.project.resolve())
    known = locations.recorded_id(stack)
    record = _read(_file(known or locations.default_id(stack)))
    if record is not None and known is None and record.checkout != checkout:
        record, known = None, secrets.token_hex(locations.ID_LENGTH // 2)
    if record is None:
        record = Cluster(known or locations.default_id(stack), stack.name, checkout, provider, time.time())
    places = record.places if place is None or place in record.places else [*record.places, place]
    organization = stack.named_organization or record.organization
    fresh = replace(record, checkout=checkout, provider=provider, places=places, organization=organization)
    try:
        if locations.recorded_id(stack) != fresh.id:
            write_atomically(state / locations.ID, fresh.id + "\n", 0o600)
        if _read(_file(fresh.id)) != fresh:
            _write(fresh)
    except OSError as error:
        raise os_errors.explain(error, state) from error


def forget(stack: Stack) -> None:
    """Forget the cluster of a stack, once nothing of it is left."""
    with contextlib.suppress(OSError):
        remove(locations.cluster_id(stack))
        state = locations.state_dir(stack)
        # A killed process leaves a draft.
        for file in (state / locations.ID, *state.glob(f".{locations.ID}.*")):
            file.unlink(missing_ok=True)
        state.rmdir()
        state.parent.rmdir()


def remove(cluster: str) -> None:
    """Remove the record of a cluster by its id."""
    for file in (_file(cluster), *_folder().glob(f".{cluster}.json.*")):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # other clusters are recorded there
        _folder().rmdir()


def without_state(stack: Stack) -> Cluster | None:
    """Return a local cluster that runs, was brought up from this folder, and is not in its state.

    The state was removed (`git clean -xdf`), or the checkout that had it was moved away.
    """
    checkout = str(stack.project.resolve())
    known = locations.recorded_id(stack)
    for each in recorded():
        if (
            (each.checkout, each.stack) == (checkout, stack.name)
            and each.id != known
            and each.run_dir.exists()
        ):
            return each
    return None


def _folder() -> Path:
    return locations.state_root() / "clusters"


def _file(cluster: str) -> Path:
    return _folder() / f"{cluster}.json"


def _read(file: Path) -> Cluster | None:
    try:
        cluster = Cluster(id=file.stem, **foreign.record(file))
        complete = isinstance(cluster.places, list) and foreign.is_time(cluster.since)
        texts = (cluster.stack, cluster.checkout, cluster.provider, cluster.organization or "")
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return cluster if complete and all(isinstance(text, str) for text in texts) else None


def _write(cluster: Cluster) -> None:
    content = {key: value for key, value in asdict(cluster).items() if key != "id"}
    _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    # The mode holds whatever the umask is: whoever can write here could make us end another cluster.
    write_atomically(_file(cluster.id), json.dumps(content), 0o600)


def _same_folder(folder: Path, other: Path) -> bool:
    try:
        return folder.samefile(other)
    except OSError:
        return False
