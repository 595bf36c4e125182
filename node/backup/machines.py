"""The record of machines in a backup: without it the jobs that a backup brings would have no price.

In a restored cluster these are files beside the cluster's own record (`node.elastic.machine_record`), because
its ledger has never counted those machines. A machine that both have is the cluster's own.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
from pathlib import Path

from node.design.folders import Folders
from node.elastic import machine_record
from node.elastic.machine_record import DAY, PACKED, RESTORED
from node.system import files, rpc

OPEN = f"open{DAY}"
"""The file of machines that ran at the backup, or whose end was not recorded yet."""
LIVES_SECONDS = 30.0
TRIES = 3


def size(folders: Folders) -> int:
    """Return the bytes of the record."""
    return sum(file.stat().st_size for file in _files(folders))


def copy(folders: Folders, target: Path) -> None:
    """Copy the record, with the machines that run now, to a folder that is made for it."""
    target.mkdir()
    for _ in range(TRIES):
        # The daemon may pack a day meanwhile.
        with contextlib.suppress(FileNotFoundError):
            for file in _files(folders):
                shutil.copy(file, target / file.name)
            break
    with contextlib.suppress(rpc.RpcError, rpc.RpcUnavailableError):
        told = rpc.call(str(folders.daemon_socket), "lives", LIVES_SECONDS)
        lines = [json.dumps(life) for life in (*told["unrecorded"], *told["open"])]
        files.write(target / OPEN, "".join(f"{line}\n" for line in lines).encode())


def place(source: Path, folders: Folders, digest: str, user: str | None) -> None:
    """Put the record of a backup beside the cluster's own. It can be repeated after an interruption.

    Args:
        source: The folder with the backup's files; there may be none, as in backups of earlier releases.
        digest: The backup's digest, by which `remove` knows them.
        user: The user of the daemon.
    """
    if not source.is_dir():
        return
    folder = files.folder(_folder(folders), 0o755, user)
    for file in sorted(source.iterdir()):
        # Of a cluster that was restored itself, some have such a name already.
        name = f"{_prefix(digest)}{file.name.removesuffix('.gz')}.gz"
        if not name.endswith(PACKED) or not file.is_file():
            continue
        content = file.read_bytes()
        content = content if file.name.endswith(PACKED) else gzip.compress(content)
        files.write(folder / name, content, 0o644, user)


def remove(folders: Folders, digest: str) -> None:
    """Remove what `place` has put there, of a restore that is given up."""
    for file in _folder(folders).glob(f"{_prefix(digest)}*"):
        file.unlink(missing_ok=True)


def _prefix(digest: str) -> str:
    return f"{RESTORED}{digest[:8]}-"


def _folder(folders: Folders) -> Path:
    return Path(str(folders.elastic)) / machine_record.FOLDER


def _files(folders: Folders) -> list[Path]:
    folder = _folder(folders)
    return [*machine_record.days(folder), *sorted(folder.glob(f"{RESTORED}*{PACKED}"))]
