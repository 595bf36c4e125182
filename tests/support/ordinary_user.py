"""An ordinary user for tests that root runs, who sees Python and the project wherever they lie."""

from __future__ import annotations

import fcntl
import os
import pwd
import stat
import sys
import tempfile
from pathlib import Path

from tests.support.checkout import ROOT
from tests.support.private_mounts import PrivateMounts

NAME = "nobody"


class OrdinaryUser(PrivateMounts):
    """Runs commands as that user.

    Args:
        folder: will belong to the user, with its content.
        name: the user's name. It must not be `nobody`, who in a user namespace seems to own all files of
            users that the namespace does not have.
    """

    def __init__(self, folder: Path, name: str = NAME) -> None:
        super().__init__()
        # This machine has the user once, with one folder for clusters, so only one test at a time may run.
        self._turn = os.open(
            f"{tempfile.gettempdir()}/slurm-stacks-tests-{name}.lock", os.O_RDWR | os.O_CREAT
        )
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        entry = pwd.getpwnam(name)
        self.id, self.group = entry.pw_uid, entry.pw_gid
        self._expose([Path(sys.base_prefix), ROOT, folder])
        self.own(folder)

    def __call__(self, *command: str) -> list[str]:
        user = ["setpriv", f"--reuid={self.id}", f"--regid={self.group}", "--clear-groups", *command]
        return super().__call__(*user)

    def close(self) -> None:
        super().close()
        os.close(self._turn)

    def own(self, folder: Path) -> None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, self.id, self.group, follow_symlinks=False)

    def _expose(self, folders: list[Path]) -> None:
        """If only root may enter a folder above, mount another one over it that has nothing else in it."""
        hidden = [(folder, closed) for folder in folders if (closed := _closed(folder)) is not None]
        for closed in {closed for _, closed in hidden}:
            self.replace(closed, [folder for folder, above in hidden if above == closed], "1m")


class NewUser(OrdinaryUser):
    """A user whom the user database has in this namespace only, with any name and number.

    Args:
        folder: will belong to the user, with its content.
        home: the home folder that the database tells.
    """

    def __init__(self, folder: Path, name: str, number: int, home: str) -> None:
        PrivateMounts.__init__(self)
        self._turn = os.open(f"{tempfile.gettempdir()}/slurm-stacks-tests-new.lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        self.id = self.group = number
        for file, line in (
            ("passwd", f"{name}:x:{number}:{number}:,,,:{home}:/bin/sh"),
            ("group", f"{name}:x:{number}:"),
        ):
            database = folder / file
            database.write_text(f"{Path('/etc', file).read_text()}{line}\n")
            self.run("mount", "--bind", str(database), f"/etc/{file}")
        self._expose([Path(sys.base_prefix), ROOT, folder])
        self.own(folder)


def _closed(folder: Path) -> Path | None:
    """Return the topmost folder above a path that others cannot enter."""
    above = reversed(folder.parents)
    return next((path for path in above if not path.stat().st_mode & stat.S_IXOTH), None)
