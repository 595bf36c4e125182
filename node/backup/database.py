"""The accounting in a backup: a dump of its database, and the way back into it.

A dump is loaded beside the database that is in use, and takes its place only when it is complete. MariaDB
knows root by its socket.
"""

from __future__ import annotations

import os
from pathlib import Path

from node.backup.archive import BackupError
from node.bootstrap.accounting import DATABASE
from node.bootstrap.command import Runner
from node.system import subprocesses
from node.system.waiting import wait_at_most

LOADED, FORMER = f"{DATABASE}_restored", f"{DATABASE}_former"
"""The databases with a loaded dump, and with the tables whose place it took."""
# The dump is of the moment in which its transaction begins: all of Slurm's tables are InnoDB.
DUMP = ("mariadb-dump", "--single-transaction", "--quick", "--hex-blob", "--default-character-set=utf8mb4")
BEGUN = b"CREATE TABLE"
"""What a dump has as soon as its transaction has begun."""
BEGIN_SECONDS = 60.0
SANDBOX = b"/*M!999999"
"""The beginning of a first line that newer dumps have and clients of older releases refuse."""
CLIENT = ("mariadb", "--batch", "--skip-column-names", "--default-character-set=utf8mb4")
MOVE_SECONDS = 300.0


class Dump:
    """A dump that is being written.

    Args:
        file: Where it is written.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._errors = file.with_suffix(".err")
        with file.open("xb") as output, self._errors.open("xb") as errors:
            env = {"PATH": subprocesses.SEARCH, "LC_ALL": "C.UTF-8"}
            self._child = subprocesses.start((*DUMP, DATABASE), env, output, errors=errors)

    def until_begun(self) -> None:
        """Wait until the dump's transaction has begun: nothing that comes later is in it.

        Raises:
            BackupError: The dump failed, or did not begin in time.
        """

        def begun() -> bool:
            with self._file.open("rb") as stream:
                return BEGUN in stream.read(1024 * 1024) or self._child.poll() is not None

        if not wait_at_most(begun, BEGIN_SECONDS):
            self.stop()
            raise BackupError(
                "backup.database", f"the dump of the accounting has not begun within {BEGIN_SECONDS:g} s"
            )
        if self._child.poll():
            self._fail()

    def finish(self) -> None:
        """Wait until the dump is complete.

        Raises:
            BackupError: It failed.
        """
        if self._child.wait():
            self._fail()
        self._errors.unlink()

    def stop(self) -> None:
        """End a dump that nobody needs any more."""
        if self._child.poll() is None:
            subprocesses.kill(self._child)

    def _fail(self) -> None:
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        raise BackupError(
            "backup.database", f"the accounting cannot be dumped: {lines[-1] if lines else 'no output'}"
        )


def load(dump: Path, run: Runner) -> None:
    """Load a dump beside the database that is in use. It begins anew if an earlier one was interrupted.

    Raises:
        BackupError: This MariaDB cannot load it.
    """
    drop_former(run)
    _sql(run, f"DROP DATABASE IF EXISTS {LOADED}; CREATE DATABASE {LOADED};")
    errors = dump.with_suffix(".err")
    with dump.open("rb") as source, errors.open("wb") as output:
        if source.read(len(SANDBOX)) == SANDBOX:
            source.readline()
        else:
            source.seek(0)
        # The program reads from where the shared descriptor is.
        os.lseek(source.fileno(), source.tell(), os.SEEK_SET)
        env = {"PATH": subprocesses.SEARCH, "LC_ALL": "C.UTF-8"}
        child = subprocesses.start((*CLIENT, LOADED), env, output, stdin=source)
        try:
            status = child.wait()
        except BaseException:
            subprocesses.kill(child)
            raise
    if status:
        drop_loaded(run)
        lines = errors.read_text(errors="replace").strip().splitlines()
        raise BackupError(
            "restore.database",
            f"MariaDB of this machine cannot load the backup's accounting: {lines[-1] if lines else status}",
        )
    errors.unlink()


def drop_loaded(run: Runner) -> None:
    """Remove a loaded dump whose place is not taken."""
    _sql(run, f"DROP DATABASE IF EXISTS {LOADED};")


def take_place(run: Runner) -> None:
    """Put a loaded dump into the place of the database. Nothing may use either; it can be repeated."""
    if not (loaded := _tables(run, LOADED)):
        # An earlier call has moved all of them.
        _sql(run, f"DROP DATABASE IF EXISTS {LOADED};")
        return
    _sql(run, f"CREATE DATABASE IF NOT EXISTS {FORMER}; CREATE DATABASE IF NOT EXISTS {DATABASE};")
    present, former = _tables(run, DATABASE), _tables(run, FORMER)
    # One statement renames all tables or none.
    moves = [f"{DATABASE}.`{name}` TO {FORMER}.`{name}`" for name in present if name not in former]
    moves += [f"{LOADED}.`{name}` TO {DATABASE}.`{name}`" for name in loaded]
    _sql(run, f"RENAME TABLE {', '.join(moves)}; DROP DATABASE {LOADED};")


def put_back(run: Runner) -> None:
    """Put the tables whose place a dump has taken back, and remove the dump. It can be repeated.

    Nothing may use either.
    """
    if former := _tables(run, FORMER):
        # One statement renames all tables or none.
        moves = [f"{DATABASE}.`{name}` TO {LOADED}.`{name}`" for name in _tables(run, DATABASE)]
        moves += [f"{FORMER}.`{name}` TO {DATABASE}.`{name}`" for name in former]
        _sql(run, f"DROP DATABASE IF EXISTS {LOADED}; CREATE DATABASE {LOADED};")
        _sql(run, f"RENAME TABLE {', '.join(moves)};")
    _sql(run, f"DROP DATABASE IF EXISTS {FORMER}; DROP DATABASE IF EXISTS {LOADED};")


def drop_former(run: Runner) -> None:
    """Remove the tables whose place a dump has taken."""
    _sql(run, f"DROP DATABASE IF EXISTS {FORMER};")


def _tables(run: Runner, database: str) -> list[str]:
    query = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{database}';"
    return _sql(run, query).split()


def _sql(run: Runner, statements: str) -> str:
    return run(*CLIENT, stdin=statements, timeout=MOVE_SECONDS)
