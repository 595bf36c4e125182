"""Commands of an ordinary user, in strange environments, and with others' files in the way."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from operations.local import system_packages
from tests.support.checkout import SMALL, Checkout, until
from tests.support.ordinary_user import NAME, NewUser, OrdinaryUser

NOTHING_AT_ALL = (
    'umask 077; exec setsid -w env -i XDG_STATE_HOME="$XDG_STATE_HOME" "$@" </dev/null >/dev/null 2>&1'
)
TOO_MUCH = 'umask 000; USER=alice LOGNAME=alice HOME= TERM=dumb LC_ALL=C exec "$@"'


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(NOTHING_AT_ALL, id="nothing at all", marks=pytest.mark.wide),
        pytest.param(TOO_MUCH, id="too much", marks=pytest.mark.wide),
    ],
)
def test_surroundings(script: str, tmp_path: Path) -> None:
    def inside(*command: str) -> list[str]:
        return ["sh", "-c", script, "sh", *command]

    checkout = Checkout(tmp_path / "a checkout", SMALL, inside=inside)
    checkout.env["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    try:
        assert checkout.cluster("up").returncode == 0
        assert checkout.cluster("exec", "--", "srun", "-N1", "touch", str(tmp_path / "ran")).returncode == 0
        assert (tmp_path / "ran").exists()
        run = checkout.run_directory
        assert list(writable(run)) == [], "anybody could change what the cluster executes"
        assert checkout.cluster("down").returncode == 0
    finally:
        assert checkout.close() == []


def writable(run: Path) -> Iterator[str]:
    """Return the files that others than their owner may write, without folders such as /tmp.

    Daemons make and remove files meanwhile.
    """
    for folder, _, files in os.walk(run):
        for path in (folder, *(f"{folder}/{file}" for file in files)):
            with contextlib.suppress(FileNotFoundError):
                mode = os.lstat(path).st_mode
                shared = stat.S_ISDIR(mode) and mode & stat.S_ISVTX  # a node's own /tmp
                kinds = not shared and (stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISFIFO(mode))
                if kinds and mode & (stat.S_IWGRP | stat.S_IWOTH):
                    yield path


@pytest.fixture
def folder() -> Iterator[Path]:
    # Only root may enter pytest's own folders, and nodes have a /tmp of their own.
    path = Path(tempfile.mkdtemp(prefix="ordinary-user-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def ordinary(folder: Path) -> Iterator[Callable[[], tuple[OrdinaryUser, Checkout]]]:
    """Makes a checkout that belongs to an ordinary user, who runs `./cluster` in it."""
    made: list[tuple[OrdinaryUser, Checkout]] = []

    def make() -> tuple[OrdinaryUser, Checkout]:
        checkout = Checkout(folder / "a checkout", SMALL)
        user = OrdinaryUser(folder)
        checkout._inside, checkout._elsewhere = user, True
        checkout.env |= {"HOME": str(folder / "home"), "USER": "root", "LOGNAME": "root"}
        (folder / "home").mkdir()
        user.own(folder)
        made.append((user, checkout))
        return made[-1]

    yield make
    for user, checkout in made:
        assert checkout.cluster("down").returncode == 0
        user.close()
        with contextlib.suppress(FileNotFoundError):
            runs(user).rmdir()


def runs(user: OrdinaryUser) -> Path:
    return Path(f"/tmp/slurm-stacks-{user.id}")


ODD = {
    "a domain's, by number": ("DOM\\ada", 1_073_742_927),
    "dots, a realm": ("ada.lovelace@example.org", 41_001),
    "a space": ("Ada Lovelace", 41_002),
    "digits": ("41003", 41_004),
    "long": ("a-name-of-more-than-thirty-two-characters", 41_005),
    "a long number": ("ada", 4_294_967_290),
    "what Slurm calls nobody": ("ada", 99),
}
"""Names and numbers that a name service may give: SSSD's, Winbind's, OS Login's, a container's."""


@pytest.mark.wide
@pytest.mark.parametrize(("name", "number"), ODD.values(), ids=ODD)
def test_users_of_every_name_and_number(folder: Path, name: str, number: int) -> None:
    # slurmdbd reads its user's name in its own way.
    recorded = not name.isalnum() and not system_packages.missing(system_packages.ACCOUNTING)
    stack = SMALL.replace("suspend_time", "accounting: true, suspend_time") if recorded else SMALL
    checkout = Checkout(folder / "a checkout", stack)
    checkout.env |= {"HOME": str(folder / "no home"), "XDG_CACHE_HOME": str(folder / "cache")}
    user = NewUser(folder, name, number, str(folder / "no home"))
    checkout._inside, checkout._elsewhere = user, True
    try:
        checkout.cluster("up", "--no-benchmark", check=True)
        assert checkout.execute("srun", "-N2", "id", "-un") == f"{name}\n" * 2
        checkout.execute(
            "sbatch", "--wait", f"--output={folder}/out", "--wrap=env -u SLURM_CONF squeue -ho %u"
        )
        assert (folder / "out").read_text() == f"{name}\n"
        if recorded:
            assert (
                checkout.execute("sacctmgr", "-nP", "show", "cluster", "format=controlhost") == "127.0.0.1\n"
            )
            until(
                lambda: name in checkout.execute("sacct", "-nPX", "--format=user").splitlines(),
                60,
                "a record",
            )
    finally:
        assert checkout.cluster("down", "--yes").returncode == 0
        user.close()
        with contextlib.suppress(FileNotFoundError):
            runs(user).rmdir()
        assert checkout.close() == []


@pytest.mark.wide
def test_an_ordinary_user_and_others_files(ordinary: Callable[..., tuple[OrdinaryUser, Checkout]]) -> None:
    user, checkout = ordinary()
    root = runs(user)
    state = Path(checkout.env["XDG_STATE_HOME"]) / "slurm-stacks"

    state.mkdir(parents=True)
    refused = checkout.cluster("up")
    assert refused.returncode == 3
    assert (
        f"{state} belongs to root, and you are {NAME}. Take it back (sudo chown -R {NAME} '{state}')"
        in refused.stderr
    )
    shutil.rmtree(state.parent)
    state.parent.mkdir()
    user.own(state.parent)

    with contextlib.suppress(FileNotFoundError):
        root.rmdir()  # left by an earlier cluster of that user
    root.mkdir()
    try:
        refused = checkout.cluster("up")
        assert refused.returncode == 3
        assert f"{root} belongs to root, and you are {NAME}." in refused.stderr
        assert f"(as root: rm -r {root})" in refused.stderr
    finally:
        root.rmdir()

    checkout.cluster("up", check=True)
    assert checkout.execute("srun", "-N2", "id", "-un").split() == [NAME, NAME]
    (run,) = (path for path in root.iterdir() if path.is_dir())
    assert "nobody has it up from this checkout" in _as_root(checkout)
    kept = run / "shared" / "roots"
    kept.mkdir()
    (kept / "file").touch()
    failed = checkout.cluster("down")
    assert failed.returncode == 1
    assert f"folder {run} ({kept} belongs to root; have it removed, as root: rm -r {run})" in failed.stderr
    shutil.rmtree(run)
    assert "nothing is left" in checkout.cluster("down", check=True).stderr


def _as_root(checkout: Checkout) -> str:
    """Return what root is told about that user's cluster."""
    inside, checkout._inside = checkout._inside, lambda *command: list(command)
    try:
        return checkout.cluster("status", env={"HOME": os.environ["HOME"]}).stderr
    finally:
        checkout._inside = inside
