"""The folder of the images that container machines start from: each layer made once, and used by many.

A layer is a folder there, named by what it is made of; what is made on top of another one has that one's name
and some more. Changes of this project make new ones, so those that nobody has used for a while go.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

NEEDED_MIB = 3000
"""What is needed while an image is made: itself, and the packages that it is made of."""
KEPT_SECONDS = 7 * 86400.0
"""For how long a layer stays that nothing uses."""
DRAFT = ".draft"
PROCESSES = Path("/proc")

Say = Callable[[str], None]


class ImageError(Exception):
    """An image cannot be had here; the text says why, and what to do."""


def made(folder: Path, name: str, make: Callable[[Path], None], say: Say) -> Path:
    """`folder/name`, made by `make` in a draft where it is missing; one process at a time makes it.

    Raises:
        ImageError: from `make`, or there is no room; the draft is removed.
    """
    target = folder / name
    with contextlib.suppress(OSError):
        # The moment of its last use.
        _lock(target).touch()
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(_lock(target), say):
        draft = folder / f".{name}{DRAFT}"
        # Of one that was killed at it.
        _remove(draft)
        if target.is_dir():
            return target
        _see_room(folder)
        draft.mkdir()
        try:
            make(draft)
        except BaseException:
            _remove(draft)
            raise
        draft.rename(target)
    return target


def prune(folder: Path, keep: Collection[str], plans: Iterable[Path]) -> list[str]:
    """Remove layers that nobody has used for `KEPT_SECONDS`, and what a maker that was killed has left.

    Args:
        keep: names of layers that stay, however old.
        plans: files that name the layers of clusters that are up: a machine may start from them at any time.

    Returns:
        The names of those that were removed.
    """
    old = [path for path in _layers(folder) if path.name not in keep and _unused(path) > KEPT_SECONDS]
    if not old and not any(folder.glob(f".*{DRAFT}")):
        return []
    used = _mounted() + "".join(map(_text, plans))
    stay = {path.name for path in _layers(folder)} - {path.name for path in old}
    gone = []
    # The longest names first: a layer that stays needs those below it.
    for path in sorted(old, key=lambda path: -len(path.name)):
        needed = any(other.startswith(f"{path.name}-") for other in stay)
        # By its name, which is no other layer's: there may be several ways to the folder.
        if needed or f"/{path.name}/" in used:
            stay.add(path.name)
        elif _take(path):
            gone.append(path.name)
    for draft in folder.glob(f".*{DRAFT}"):
        _take(draft, folder / draft.name[1:].removesuffix(DRAFT))
    return gone


def mib(folder: Path) -> int:
    """How much all that is there takes on the disk."""
    blocks = 0
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                blocks += Path(path, name).lstat().st_blocks
    return blocks * 512 // 2**20


def _layers(folder: Path) -> list[Path]:
    return [path for path in folder.glob("[!.]*") if path.is_dir()] if folder.is_dir() else []


def _unused(path: Path) -> float:
    """Seconds since it was made or used."""
    found = [path.stat().st_mtime]
    with contextlib.suppress(OSError):
        found.append(_lock(path).stat().st_mtime)
    return time.time() - max(found)


def _mounted() -> str:
    """What is mounted anywhere: a machine's layers are in its own mount namespace only."""
    return "".join(map(_text, PROCESSES.glob("[0-9]*/mountinfo")))


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _take(path: Path, layer: Path | None = None) -> bool:
    """Remove a layer or its draft, unless somebody is making it just now."""
    with _lock(layer or path).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # Under another name first: half of a layer must not pass for one.
        draft = path.with_name(f".{path.name.strip('.').removesuffix(DRAFT)}{DRAFT}")
        path.rename(draft)
        _remove(draft)
    return True


def _lock(layer: Path) -> Path:
    return layer.with_name(f".{layer.name}.lock")


def _see_room(folder: Path) -> None:
    free = shutil.disk_usage(folder).free // 2**20
    if free < NEEDED_MIB:
        raise ImageError(
            f"the machines' image takes {NEEDED_MIB} MiB in {folder}, and {free} MiB are free there: "
            "make room, or have XDG_CACHE_HOME name a folder on a larger disk"
        )


@contextlib.contextmanager
def _alone(file: Path, say: Say) -> Iterator[None]:
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another command that makes the same image")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
