"""Where a stack's state and its running cluster lie.

The state lies in the checkout, in a folder that git ignores, and so moves along with the checkout. The
running cluster's directory lies under /tmp with a short name, wherever the checkout lies: a socket's path has
at most 108 bytes, and values in slurm.conf have no spaces. Its name is the cluster's id, which the state
holds. The user's state folder has results, and a record of each cluster (`clusters`).
"""

from __future__ import annotations

import hashlib
import os
import pwd
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError
from infra.program.stack import Stack

APPLICATION = "slurm-stacks"
STATE_FOLDER = f".{APPLICATION}"
"""The folder in a checkout that holds the states of its stacks."""
ID = "id"
"""The file in a stack's state that holds the id of its cluster."""
ID_LENGTH = 10
STATE_MIB = 1
"""The least free space for the state of the stacks, in MiB."""


def cluster_id(stack: Stack) -> str:
    """Return the id of a stack's cluster: 10 hexadecimal digits.

    A stack that has no cluster gets this id with its first one, unless another cluster has it by then
    (`clusters.note`).

    Raises:
        OSError: The state cannot be read.
    """
    return recorded_id(stack) or default_id(stack)


def recorded_id(stack: Stack) -> str | None:
    """Return the id in the stack's state; `None` if the stack has no cluster, or if its state was removed.

    Raises:
        OSError: The state cannot be read.
    """
    try:
        text = (state_dir(stack) / ID).read_text(encoding="ascii", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    digits = len(text) == ID_LENGTH and set(text) <= set("0123456789abcdef")
    return text if digits else None


def default_id(stack: Stack) -> str:
    """Return the id that the checkout's path and the stack's name lead to."""
    text = f"{stack.project.resolve()}\0{stack.name}"
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:ID_LENGTH]


def home() -> Path:
    """Return this user's home folder: $HOME, or the one in the user database.

    Raises:
        UserError: Exit 3. Neither names a folder.
    """
    # Path.home() is not used, because it takes an empty $HOME for the root folder.
    if os.path.isabs(path := os.environ.get("HOME", "")):  # noqa: PTH117
        return Path(path)
    try:
        return _home_in_database()
    except KeyError:
        raise UserError(
            f"user {os.getuid()} has no home folder: $HOME is not set, and the user database has no line for "
            "this user. Set HOME to a folder that you can write.",
            EXIT_REFUSED,
            code="user.no-home",
        ) from None


def pulumi_user_home() -> Path:
    """Return the home folder that the Pulumi CLI takes for this user's: the one in the user database.

    $HOME counts only for a user without a line there (Go's os/user). In containers of CI, and after `su` or
    `sudo -E`, the two may differ.

    Raises:
        UserError: Exit 3. Neither names a folder.
    """
    try:
        return _home_in_database()
    except KeyError:
        return home()


def pulumi_home() -> Path:
    """Return the Pulumi CLI's folder: credentials, selected stacks, plugins (sdk/go/common/util/pulumihome).

    Raises:
        UserError: Exit 3. Neither the user database nor a variable names a home folder.
    """
    if path := os.environ.get("PULUMI_HOME"):
        return Path(path)
    return pulumi_user_home() / ".pulumi"


def _home_in_database() -> Path:
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def state_root() -> Path:
    """Return the user's folder for results and for the records of clusters. It is not created here."""
    # The specification says that a relative $XDG_STATE_HOME must be ignored.
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if os.path.isabs(base) else home() / ".local" / "state"  # noqa: PTH117
    return root / APPLICATION


def cache_root() -> Path:
    """Return the user's folder for what is kept between clusters: environments, archives and made data."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else home() / ".cache"
    return root / APPLICATION


def state_dir(stack: Stack) -> Path:
    """Return the folder of a stack's state, lock, and fallback backend. It is not created here."""
    return stack.project.resolve() / STATE_FOLDER / stack.name


def run_root() -> Path:
    """Return the parent of all run directories of this user. It is not created here."""
    return Path(f"/tmp/{APPLICATION}-{os.getuid()}")


def run_roots() -> list[Path]:
    """Return the parents of run directories of all users of this machine.

    Another user may have put anything there.
    """
    return sorted(run_root().parent.glob(f"{APPLICATION}-[0-9]*"))


def run_dir(stack: Stack) -> Path:
    """Return the folder of the running cluster: sockets, logs, slurm.conf. It is not created here."""
    return run_root() / cluster_id(stack)
