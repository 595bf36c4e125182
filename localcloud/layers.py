"""The cache of image layers from which container machines start. A layer is made once and used by many.

Each layer is a folder, named after its content; the name of a layer on top of another begins with the other's
name. Every change of this project makes new layers, so layers that were not used for a while are removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from node import subprocesses
from node.locks import locked

NEEDED_MIB = 3000
"""Free space that is needed to make an image: the image, and the packages that are downloaded for it."""
KEPT_SECONDS = 7 * 86400.0
"""For how long an unused layer is kept."""
DRAFT = ".draft"
PROCESSES = Path("/proc")

Say = Callable[[str], None]


class ImageError(Exception):
    """An image cannot be made here; the message says why and what to do."""


def ensure(folder: Path, name: str, make: Callable[[Path], None], say: Say) -> Path:
    """Return `folder/name`. If it is missing, `make` fills a draft of it; one process at a time does so.

    Raises:
        ImageError: Raised by `make`, or there is no space; the draft is removed.
    """
    target = folder / name
    with contextlib.suppress(OSError):
        # The time of the lock file is the time of the last use.
        _lock(target).touch()
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    waiting = "waiting for another command that makes the same image"
    with locked(_lock(target), busy=lambda: say(waiting)):
        draft = folder / f".{name}{DRAFT}"
        # A process that was killed may have left its draft.
        _remove(draft)
        if target.is_dir():
            return target
        check_free_space(folder)
        draft.mkdir()
        try:
            make(draft)
        except BaseException:
            _remove(draft)
            raise
        draft.rename(target)
    return target


def prune(folder: Path, keep: Collection[str], plans: Iterable[Path]) -> list[str]:
    """Remove layers that were not used for `KEPT_SECONDS`, and drafts of processes that were killed.

    Args:
        keep: Names of layers that stay, however old.
        plans: Files that name the layers of running clusters; a machine may start from them at any time.

    Returns:
        The names of the removed layers.
    """
    old = [path for path in _layers(folder) if path.name not in keep and _unused(path) > KEPT_SECONDS]
    if not old and not any(folder.glob(f".*{DRAFT}")):
        return []
    used = _mounted() + "".join(map(_text, plans))
    stay = {path.name for path in _layers(folder)} - {path.name for path in old}
    gone = []
    # The longest names come first: a layer that stays needs the layers below it.
    for path in sorted(old, key=lambda path: -len(path.name)):
        needed = any(other.startswith(f"{path.name}-") for other in stay)
        # Compare names, which are unique, because several paths may lead to the folder.
        if needed or f"/{path.name}/" in used:
            stay.add(path.name)
        elif _take(path):
            gone.append(path.name)
    for draft in folder.glob(f".*{DRAFT}"):
        _take(draft, folder / draft.name[1:].removesuffix(DRAFT))
    return gone


def size_mib(folder: Path) -> int:
    """Return how many MiB a folder takes on the disk."""
    # An image has tens of thousands of files. Python would look at them in four times as long.
    found = (
        subprocesses.run(["du", "-sk", "--", str(folder)], {"PATH": os.defpath}) if folder.is_dir() else None
    )
    # du ends with a failure, but has the sum all the same, where a file went meanwhile or may not be read.
    return int(found.output.split()[0]) // 1024 if found and found.output else 0


def _layers(folder: Path) -> list[Path]:
    return [path for path in folder.glob("[!.]*") if path.is_dir()] if folder.is_dir() else []


def _unused(path: Path) -> float:
    """Return the seconds since a layer was made or used."""
    found = [path.stat().st_mtime]
    with contextlib.suppress(OSError):
        found.append(_lock(path).stat().st_mtime)
    return time.time() - max(found)


def _mounted() -> str:
    """Return all mounts of all processes: a machine's layers are mounted only in its own namespace."""
    return "".join(map(_text, PROCESSES.glob("[0-9]*/mountinfo")))


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _take(path: Path, layer: Path | None = None) -> bool:
    """Remove a layer or its draft, unless a process is making it now."""
    try:
        with locked(_lock(layer or path), wait=False):
            # Rename the layer first: a half-removed layer must not look complete.
            draft = path.with_name(f".{path.name.strip('.').removesuffix(DRAFT)}{DRAFT}")
            path.rename(draft)
            _remove(draft)
    except BlockingIOError:
        return False
    return True


def _lock(layer: Path) -> Path:
    return layer.with_name(f".{layer.name}.lock")


def check_free_space(folder: Path) -> None:
    """Check that an image fits into a folder, which need not exist yet.

    Raises:
        ImageError: It does not.
    """
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free // 2**20
    if free < NEEDED_MIB:
        raise ImageError(
            f"the machines' image takes {NEEDED_MIB} MiB in {folder}, and {free} MiB are free there: "
            "make room, or have XDG_CACHE_HOME name a folder on a larger disk"
        )


def _remove(folder: Path) -> None:
    """Remove a folder whole, also while a process that was interrupted removes it, too."""
    while folder.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
