"""The owner of a local cluster: a file in its run directory says which engine brought it up.

The text is `embedded`, `checkout` (the file backend in the checkout, which moves along with it), or the URL
of the Pulumi backend that holds the state. Another engine refuses to touch the cluster, and names the command
that destroys it.

A second file names the process that has claimed the cluster last. A run directory that has nothing else holds
no cluster yet, so a backend's claim of it ends with that process: a backend that nobody reaches any more, or
a command that was killed, keeps nobody away.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from infra.errors import EXIT_REFUSED, UserError
from infra.program import clusters, folders, locations, mode, project_file
from infra.program.clusters import Cluster
from infra.program.files import write_atomically
from infra.program.stack import Stack
from node.system import foreign
from node.system.processes import ProcessId

OWNER = "owner"
"""The file in a run directory that holds the owner."""
CLAIMANT = "claimant"
"""The file beside it with the pid and the start time of the process that has claimed the cluster last."""
EMBEDDED = "embedded"
IN_CHECKOUT = "checkout"
PULUMI_CLOUD = "https://api.pulumi.com"


def read(stack: Stack) -> str | None:
    """Return the owner of a stack's cluster. `None` means that it has none.

    Raises:
        UserError: Exit 3. The run directory is not ours to read.
    """
    return of_run_dir(folders.check_run_dir(stack))


def of_run_dir(run: Path) -> str | None:
    """Return the owner of the cluster in a run directory; `None` also for a claim that is over."""
    owner = _written(run)
    # What is in the checkout can be reached, and its state says what was made.
    counts = "://" not in owner or holds_a_cluster(run) or _claimant_lives(run)
    return owner if owner and counts else None


def has_claimed(stack: Stack, claimant: str) -> bool:
    """Return whether a claimant has claimed a cluster that has not been released, even if it made nothing.

    Raises:
        UserError: As for `read`.
    """
    return _written(folders.check_run_dir(stack)) == holder(stack, claimant)


def _written(run: Path) -> str:
    try:
        return (run / OWNER).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def holds_a_cluster(run: Path) -> bool:
    """Return whether anything of a cluster is in a run directory, besides a claim of it."""
    return run.is_dir() and bool(
        {entry.name for entry in run.iterdir()} - {entry.name for entry in _own_files(run)}
    )


def is_void(cluster: Cluster) -> bool:
    """Return whether there is but a claim of a cluster, whose process made nothing and has ended."""
    try:
        run = folders.check_run_dir_of(cluster.id)
    except UserError:  # it is another user's, who may have put anything there
        return False
    return bool(_written(run)) and of_run_dir(run) is None


def _claimant_lives(run: Path) -> bool:
    try:
        pid, started = map(int, (run / CLAIMANT).read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return False
    return ProcessId(pid, started).alive()


def check(stack: Stack, claimant: str) -> None:
    """Refuse if someone other than `claimant` owns the cluster.

    Raises:
        UserError: Exit 3. The message names the command that destroys the cluster.
    """
    owner = read(stack)
    if owner is not None and owner != holder(stack, claimant):
        raise UserError(refusal(stack, owner), EXIT_REFUSED, code="runner.other-owner")


def claim(stack: Stack, claimant: str) -> None:
    """Create the run directory and write `claimant` into it, unless the cluster has an owner.

    Raises:
        UserError: Exit 3. Someone else owns the cluster or the run directory, or the cluster's state is lost.
    """
    check_claim(stack, claimant)
    run = folders.make_run_dir(stack)
    path, text = run / OWNER, holder(stack, claimant) + "\n"
    # The mode holds whatever the umask is: nobody else may write it.
    try:
        write_atomically(path, text, 0o644, exclusive=True)
    except FileExistsError:
        if read(stack) is None:  # a claim that is over, or an empty file, perhaps after a full disk
            write_atomically(path, text, 0o644)
        check(stack, claimant)
    if (this := ProcessId.of(os.getpid())) is not None:
        write_atomically(run / CLAIMANT, f"{this.pid} {this.started}\n", 0o644)


def check_claim(stack: Stack, claimant: str) -> None:
    """Refuse what `claim` refuses, and change nothing.

    Raises:
        UserError: Exit 3. Someone else owns the cluster or the run directory, or the cluster's state is lost.
    """
    _refuse_without_state(stack, claimant)
    _refuse_renamed(stack, claimant)
    check(stack, claimant)


def _refuse_renamed(stack: Stack, claimant: str) -> None:
    """Refuse to bring a stack up beside a cluster of this checkout whose state may have become this stack's.

    `pulumi stack rename` gives a state and a stack file another name. What is up keeps the old one, so the
    engine would end nothing of it, and make a second cluster.
    """
    if "://" not in claimant or holder(stack, claimant) != claimant or read(stack) is not None:
        return
    for each in clusters.recorded():
        ours = (each.checkout, each.provider) == (str(stack.project.resolve()), "local")
        if not ours or each.stack == stack.name or _has_state(each.home, claimant):
            continue
        if of_run_dir(folders.check_run_dir_of(each.id)) != claimant:
            continue
        raise UserError(
            f"stack {stack.name}: the cluster of stack {each.stack} was brought up from here, and its state "
            f"is not in {claimant} by that name any more. A local cluster goes by its stack's name. Was the "
            f"stack renamed? Then give it back its name: `pulumi stack rename {each.stack} --stack "
            f"{stack.engine_name}`. Else `./cluster down --stack {each.stack}` ends that cluster.",
            EXIT_REFUSED,
            code="runner.renamed",
        )


def _has_state(stack: Stack, url: str) -> bool:
    """Return whether a backend has a stack's state. Only a folder can be looked into: else its file tells."""
    folder = backend_folder(url)
    if folder is None:
        return stack.file.exists()
    states = folder / ".pulumi" / "stacks"
    # Before Pulumi 3.61 the project was no part of the name.
    names = (f"{project_file.name_of(stack.project)}/{stack.name}.json", f"{stack.name}.json")
    return any((states / f"{name}{packed}").exists() for name in names for packed in ("", ".gz", ".zst"))


def backend_folder(url: str) -> Path | None:
    """Return the folder of a file backend; `None` for another backend."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        return None
    path = unquote(f"{parts.netloc}{parts.path}")
    if path.startswith("~"):
        path = str(locations.pulumi_user_home() / path.removeprefix("~").lstrip("/"))
    return Path(path)


def _refuse_without_state(stack: Stack, claimant: str) -> None:
    """Refuse to bring a stack up beside, or over, a cluster whose state is gone."""
    orphan = clusters.without_state(stack)
    if orphan is None:
        return
    if orphan.id == locations.cluster_id(stack) and read(stack) == claimant and claimant != EMBEDDED:
        return  # the state is in the user's own Pulumi backend
    raise UserError(
        f"a cluster of stack {stack.name} that was brought up from here is running, and its state is not in "
        f"{locations.state_dir(stack)}. Was the checkout moved? Then run ./cluster in its new place. Was the "
        f"state deleted (git clean -x)? `{orphan.down_command}` ends the cluster; then run `up` again.",
        EXIT_REFUSED,
        code="state.missing",
    )


def holder(stack: Stack, claimant: str) -> str:
    """Return the text of the owner file for a claimant: the backend in the checkout has no fixed path."""
    return IN_CHECKOUT if claimant == fallback_url(stack) else claimant


def release(stack: Stack) -> None:
    """Forget the owner, and remove the run directory if nothing else is left in it."""
    path = folders.check_run_dir(stack)
    clusters.forget(stack)
    for entry in _own_files(path):
        entry.unlink(missing_ok=True)
    for folder in (path, path.parent):
        try:
            folder.rmdir()
        except FileNotFoundError:  # the cluster's own commands have removed it
            continue
        except OSError:  # it has another cluster's files, or leftovers
            return


def _own_files(run: Path) -> list[Path]:
    """Return this module's files in a run directory. A killed process leaves its drafts."""
    return [path for name in (OWNER, CLAIMANT) for path in (*run.glob(f".{name}.*"), *run.glob(name))]


def claim_in_program(stack: Stack) -> None:
    """Claim a local cluster, in its Pulumi program, for the engine that runs the program.

    It does nothing in a plan, or under the embedded runner, which has claimed the cluster already. In a
    preview of the real engine it only checks.

    Raises:
        UserError: Exit 3. The cluster belongs to another engine.
    """
    if mode.current() != "pulumi":
        return
    import pulumi
    import pulumi.runtime

    stack = replace(stack, organization=pulumi.get_organization())
    refuse_other_organization(stack)
    url = backend_url(stack.project)
    if pulumi.runtime.is_dry_run():
        check_claim(stack, url)
    else:
        claim(stack, url)


def refuse_other_organization(stack: Stack) -> None:
    """Refuse, in a Pulumi program, a stack beside that of another organization from the same folder.

    Raises:
        UserError: Exit 3; both would be one cluster, with the same files and names.
    """
    record = clusters.of(stack)
    up = record.organization if record is not None else None
    if up is not None and stack.named_organization not in (None, up):
        raise UserError(
            f"stack {stack.engine_name}: a cluster of {replace(stack, organization=up).engine_name} was "
            "brought up from this folder, with the same files and names. Destroy it first, or use another "
            "checkout.",
            EXIT_REFUSED,
            code="runner.other-organization",
        )


def backend_url(project_dir: Path) -> str:
    """Return the URL of the backend that the Pulumi CLI uses here: `logged_in`, or Pulumi's own service."""
    return logged_in(project_dir) or PULUMI_CLOUD


def logged_in(project_dir: Path) -> str | None:
    """Return the backend that the environment, the project or `pulumi login` names.

    `None` means that the CLI would ask.

    This reads the same sources in the same order as the CLI, because starting the CLI costs half a second.
    """
    if url := os.environ.get("PULUMI_BACKEND_URL"):
        return url
    backend = _mapping(yaml.safe_load(_text(project_dir / "Pulumi.yaml"))).get("backend")
    if url := _mapping(backend).get("url"):
        return str(url)
    folder = Path(os.environ.get("PULUMI_CREDENTIALS_PATH") or locations.pulumi_home())
    try:
        credentials = _mapping(foreign.parse(_text(folder / "credentials.json") or "{}"))
    except ValueError:
        credentials = {}
    if url := credentials.get("current"):
        return str(url)
    return PULUMI_CLOUD if os.environ.get("PULUMI_ACCESS_TOKEN") else None


def refusal(stack: Stack, found: str) -> str:
    """Return the message that a claim is refused, with the command that destroys the owner's cluster."""
    down = f"./cluster down --stack {stack.name}"
    if found == EMBEDDED:
        who, command = "by ./cluster without the Pulumi CLI (its embedded runner)", f"`{down}`"
    elif found == IN_CHECKOUT:
        who, command = (
            f"by ./cluster with the Pulumi CLI, state in {fallback_url(stack)}",
            f"`{down}` with `pulumi` on PATH",
        )
    else:
        who = f"with the Pulumi CLI, state in {found}"
        command = f"`PULUMI_BACKEND_URL={found} pulumi destroy --stack {stack.engine_name}`"
    return f"The cluster of stack {stack.name} was brought up {who}. Destroy it first: {command}."


def fallback_url(stack: Stack) -> str:
    """Return the file backend that ./cluster uses where the user is not logged in to Pulumi."""
    return "file://" + str(locations.state_dir(stack) / "backend")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
