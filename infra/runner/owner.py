"""Nobody owns a cluster twice: a file in the run directory says which way of running brought it up.

Its text is `embedded`, or the URL of the Pulumi backend that holds the state. The other way of running
refuses, and names the command that destroys the cluster.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

from infra.errors import EXIT_REFUSED, UserError
from infra.runner import folders, locations, mode

EMBEDDED = "embedded"
PULUMI_CLOUD = "https://api.pulumi.com"


def read(project_dir: Path, stack: str) -> str | None:
    """Who owns this checkout's cluster of that name; None: nobody.

    Raises:
        UserError: exit 3; the run directory is not ours to look at.
    """
    path = folders.check_run_dir(project_dir, stack) / "owner"
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def check(project_dir: Path, stack: str, claimant: str) -> None:
    """Refuse if someone other than `claimant` owns the cluster.

    Raises:
        UserError: exit 3, naming the command that destroys it.
    """
    found = read(project_dir, stack)
    if found is not None and found != claimant:
        raise UserError(refusal(project_dir, stack, found), EXIT_REFUSED)


def claim(project_dir: Path, stack: str, claimant: str) -> None:
    """Create the run directory and write `claimant` into it, unless it is already there.

    Raises:
        UserError: exit 3; someone else owns the cluster, or the run directory.
    """
    path = folders.make_run_dir(project_dir, stack) / "owner"
    draft = path.with_name(f".owner.{os.getpid()}")
    draft.touch(mode=0o644)  # whatever the umask: nobody else may say whose it is
    draft.write_text(claimant + "\n", encoding="utf-8")
    try:
        # A link is there at once and whole: of two that start at the same moment one loses.
        os.link(draft, path)
    except FileExistsError:
        if read(project_dir, stack) is None:  # empty: a full disk, perhaps
            draft.replace(path)
        check(project_dir, stack, claimant)
    finally:
        draft.unlink(missing_ok=True)


def release(project_dir: Path, stack: str) -> None:
    """Forget the owner, and remove the run directory where nothing else is left in it."""
    path = folders.check_run_dir(project_dir, stack)
    for name in ("owner", locations.NOTE):
        (path / name).unlink(missing_ok=True)
    for folder in (path, path.parent):
        try:
            folder.rmdir()
        except FileNotFoundError:  # the cluster's own commands have removed it
            continue
        except OSError:  # not empty: another cluster's, or leftovers that the audit names
            return


def claim_in_program(project_dir: Path, stack: str) -> None:
    """For the Pulumi program of a local cluster: claim it for whatever engine is running the program.

    Does nothing in a plan and under the embedded runner (which has claimed it already); in the real engine's
    preview it only checks.

    Raises:
        UserError: exit 3; the cluster belongs to the other way of running.
    """
    if mode.current() != "pulumi":
        return
    import pulumi.runtime

    url = backend_url(project_dir)
    if pulumi.runtime.is_dry_run():
        check(project_dir, stack, url)
    else:
        claim(project_dir, stack, url)


def backend_url(project_dir: Path) -> str:
    """The URL of the backend that the Pulumi CLI uses here: `logged_in`, or Pulumi's own service."""
    return logged_in(project_dir) or PULUMI_CLOUD


def logged_in(project_dir: Path) -> str | None:
    """The backend chosen by the environment, the project or `pulumi login`; None: the CLI would ask.

    Reads the same sources in the same order as the CLI, because starting it costs half a second.
    """
    if url := os.environ.get("PULUMI_BACKEND_URL"):
        return url
    backend = _mapping(yaml.safe_load(_text(project_dir / "Pulumi.yaml"))).get("backend")
    if url := _mapping(backend).get("url"):
        return str(url)
    home = Path(os.environ.get("PULUMI_HOME") or locations.home() / ".pulumi")
    folder = Path(os.environ.get("PULUMI_CREDENTIALS_PATH") or home)
    try:
        credentials = _mapping(json.loads(_text(folder / "credentials.json") or "{}"))
    except ValueError:
        credentials = {}
    if url := credentials.get("current"):
        return str(url)
    return PULUMI_CLOUD if os.environ.get("PULUMI_ACCESS_TOKEN") else None


def refusal(project_dir: Path, stack: str, found: str) -> str:
    """Why a claim is refused and which command destroys the cluster of its owner."""
    down = f"./cluster down --stack {stack}"
    if found == EMBEDDED:
        who, command = "by ./cluster without the Pulumi CLI (its embedded runner)", f"`{down}`"
    elif found == fallback_url(project_dir, stack):
        who, command = (
            f"by ./cluster with the Pulumi CLI, state in {found}",
            f"`{down}` with `pulumi` on PATH",
        )
    else:
        who = f"with the Pulumi CLI, state in {found}"
        command = f"`PULUMI_BACKEND_URL={found} pulumi destroy --stack {stack}`"
    return f"The cluster of stack {stack} was brought up {who}. Destroy it first: {command}."


def fallback_url(project_dir: Path, stack: str) -> str:
    """The file backend that ./cluster uses when the user is logged in nowhere."""
    return "file://" + str(locations.state_dir(project_dir, stack) / "backend")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
