"""`./cluster` itself: it gets uv, has it make the environment, and starts the command line."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli import fetch_uv
from infra.errors import EXIT_REFUSED
from operations import packages
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.ordinary_user import NAME, OrdinaryUser
from tests.support.private_mounts import PrivateMounts

UV = ROOT / ".venv" / "bin" / "uv"
RUN_UV = f'#!/bin/sh\nexec {UV} "$@"\n'
LIBC = "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
UV_WHEEL = f"uv-{{}}-py3-none-{LIBC}_2_17_{platform.machine()}.whl"
SETTING_UP = "Setting up the Python environment in .venv (the first time takes about a minute).\n"
CLI = """
import sys
def main():
    print("ran", *sys.argv[1:])
"""
PROJECT = """
[project]
name = "small"
version = "{version}"
requires-python = ">=3.11,<3.14"
dependencies = ["uv=={version}"]
[dependency-groups]
more = ["more=={version}"]
[tool.uv]
package = false
default-groups = []
no-index = true
find-links = ["index"]
"""
POSIX = ("dirname", "id", "printf", "sh")
"""The programs of a Unix machine that the script may run, beside readlink. macOS and the BSDs have all."""
NO_GNU = """#!/bin/sh
# As macOS' and the BSDs': none of GNU's long options, and readlink has not always had -f.
for word in "$@"; do
    case {name}$word in
        {name}--) break ;;
        {name}--* | readlink-*) echo "{name}: illegal option $word" >&2; exit 1 ;;
    esac
done
exec {real} "$@"
"""


def wheel(file: Path, content: dict[str, str]) -> None:
    """Write a wheel."""
    name, version, *_ = file.name.split("-")
    info = f"{name}-{version}.dist-info"
    content = content | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"]))


@functools.cache
def released(version: str) -> dict[str, bytes]:
    """Return path -> content of a version's files: its project, the lock that uv makes of it, its wheels."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        index = project / "index"
        index.mkdir()
        wheel(index / UV_WHEEL.format(version), {f"uv-{version}.data/scripts/uv": RUN_UV})
        wheel(index / f"more-{version}-py3-none-any.whl", {"more.py": ""})
        (project / "pyproject.toml").write_text(PROJECT.format(version=version))
        subprocess.run([UV, "lock", "--quiet", "--offline", "--project", project], check=True)
        files = [path for path in project.rglob("*") if path.is_file()]
        return {str(path.relative_to(project)): path.read_bytes() for path in files}


class Door:
    """A checkout with the script, and a project with the package uv, and one more in a group."""

    def __init__(self, folder: Path) -> None:
        self.inside: Callable[..., list[str]] = lambda *command: list(command)
        self.tools, self.checkout = folder / "tools", folder / "a checkout"
        self.index = self.checkout / "index"
        self.index.mkdir(parents=True)
        self.env = {"HOME": str(self.tools), "PATH": f"{self.tools}:/usr/bin:/bin"}
        self.command = [str(self.checkout / "cluster")]
        (self.checkout / "cli").mkdir()
        (self.tools / "cli").mkdir(parents=True)
        # The caller's folder has a package of the same name.
        (self.tools / "cli" / "main.py").write_text("raise SystemExit('another cli')")
        shutil.copy(ROOT / "cluster", self.checkout)
        for name in ("__init__.py", "__main__.py", "fetch_uv.py"):
            shutil.copy(ROOT / "cli" / name, self.checkout / "cli")
        (self.checkout / "cli" / "main.py").write_text(CLI)
        self.release("1.0")
        (self.tools / "uv").symlink_to(UV)

    @property
    def venv(self) -> Path:
        return self.checkout / ".venv"

    def release(self, version: str) -> None:
        """Change the checkout to another version, as a pull does."""
        for name, content in released(version).items():
            (self.checkout / name).write_bytes(content)

    def sync(self, *options: str) -> None:
        """What a contributor does."""
        command = [
            str(UV),
            "sync",
            "--quiet",
            "--frozen",
            "--offline",
            f"--project={self.checkout}",
            *options,
        ]
        subprocess.run(command, check=True, env=self.env)

    def start(self, *arguments: str, shell: str = '"$@"') -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.inside("sh", "-c", shell, "sh", *self.command, *arguments),
            env=self.env,
            cwd=self.tools,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, shell: str = '"$@"') -> tuple[int, str, str]:
        child = self.start(*arguments, shell=shell)
        out, err = child.communicate(timeout=120)
        return child.returncode, out, err

    def works(self, *arguments: str) -> str:
        """Run a command that must succeed, and return the script's own messages."""
        code, out, err = self.run(*arguments)
        assert (code, out) == (0, " ".join(["ran", *arguments]) + "\n"), err
        return err

    def installed(self) -> set[str]:
        """Return what is installed, as name-version."""
        found = self.venv.glob("lib/python*/site-packages/*.dist-info")
        return {path.name.removesuffix(".dist-info") for path in found}


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


@pytest.fixture
def mounts() -> Iterator[PrivateMounts]:
    made = PrivateMounts()
    yield made
    made.close()


def test_the_script_is_small() -> None:
    assert len((ROOT / "cluster").read_text().splitlines()) <= 60


def test_the_environment_is_made_once_and_follows_the_lock(door: Door) -> None:
    assert door.works("up", "a b") == SETTING_UP
    assert door.installed() == {"uv-1.0"}
    assert door.works("status") == ""
    door.release("1.1")
    assert door.works("status") == SETTING_UP
    assert door.installed() == {"uv-1.1"}


def test_what_a_contributor_has_installed_stays(door: Door) -> None:
    door.sync("--group", "more")
    assert door.works("outputs") == ""
    assert door.installed() == {"uv-1.0", "more-1.0"}
    door.release("1.1")
    door.works("outputs")
    assert door.installed() == {"uv-1.1", "more-1.0"}


def test_an_environment_that_is_activated_or_configured_is_not_changed(door: Door) -> None:
    other = door.tools / "other"
    door.env |= {
        "VIRTUAL_ENV": str(other),
        "UV_PROJECT_ENVIRONMENT": str(other),
        "PYTHONPATH": str(door.tools),
    }
    assert door.works("up") == SETTING_UP
    assert not other.exists()


CHOICES = {
    "VIRTUAL_ENV": "/nowhere",
    "PYTHONPATH": "/nowhere",
    "PYTHONHOME": "/nowhere",
    "PYTHONEXECUTABLE": "/nowhere",
    "PYTHONPLATLIBDIR": "lib64",
    "__PYVENV_LAUNCHER__": "/nowhere",
    "UV_PROJECT_ENVIRONMENT": "/nowhere",
    "UV_SYSTEM_PYTHON": "1",
    "UV_PYTHON": "3.14",
    "UV_PYTHON_PREFERENCE": "only-managed",
    "UV_MANAGED_PYTHON": "1",
    "UV_NO_MANAGED_PYTHON": "1",
    "UV_PYTHON_SEARCH_PATH": "/nowhere",
    "UV_PROJECT": "/nowhere",
    "UV_WORKING_DIR": "/nowhere",
    "UV_WORKING_DIRECTORY": "/nowhere",
}
"""The variables of CPython and uv that choose an interpreter, or an environment that is changed."""


@pytest.fixture
def others(door: Door) -> Path:
    """Return a Python of the user's, the first on PATH, whose packages must stay as they are."""
    other = door.tools / "other"
    subprocess.run([UV, "venv", "--quiet", "--offline", other], check=True)
    (door.tools / "python3").symlink_to(other / "bin" / "python3")
    return other


def test_no_choice_of_a_python_stops_a_complete_environment_or_changes_another(
    door: Door, others: Path
) -> None:
    before = sorted(others.rglob("*"))
    door.works("up")
    door.env |= CHOICES
    assert door.works("status") == ""
    door.release("1.1")
    assert door.works("status") == SETTING_UP
    assert door.installed() == {"uv-1.1"}
    assert sorted(others.rglob("*")) == before


@pytest.mark.parametrize("where", ["file", "home"])
def test_no_configuration_of_uv_stops_a_complete_environment(door: Door, where: str) -> None:
    door.works("up")
    file = door.tools / ".config" / "uv" / "uv.toml"
    file.parent.mkdir(parents=True)
    file.write_text('python-preference = "only-managed"\nrequired-version = "==0.0.1"\n')
    if where == "file":
        door.env["UV_CONFIG_FILE"] = "/nowhere/uv.toml"
    assert door.works("status") == ""


def test_what_is_put_aside_is_told_and_nothing_else(door: Door) -> None:
    """By a name of its own, for the commands that the user starts (operations/local/machine_access.py)."""
    (door.checkout / "cli" / "main.py").write_text(
        "import os\ndef main():\n"
        "    print(sorted((k, v) for k, v in os.environ.items() if k.startswith('SLURM_STACKS_ASIDE_')))\n"
    )
    value = "a b'\"$(id)`id`*\\ \n"
    door.env |= {"PYTHONPATH": value, "VIRTUAL_ENV": "", "SLURM_STACKS_ASIDE_PYTHONHOME": "/stale"}
    _, out, err = door.run()
    wanted = [("SLURM_STACKS_ASIDE_PYTHONPATH", value), ("SLURM_STACKS_ASIDE_VIRTUAL_ENV", "")]
    assert out == f"{wanted}\n", err


def test_an_environment_that_is_complete_needs_no_home(door: Door) -> None:
    door.works("up")
    file = door.tools / "file"
    file.touch()
    door.env["HOME"] = str(file / "home")
    assert door.works("status") == ""


@pytest.mark.parametrize("complete", [True, False])
def test_a_folder_that_was_removed_is_the_message(door: Door, complete: bool) -> None:
    """uv works in no such folder, and its error looks like one of the environment."""
    if complete:
        door.works("up")
    code, out, err = door.run("status", shell='mkdir gone && cd gone && rmdir ../gone && "$@"')
    assert (code, out) == (3, "")
    assert "The folder in which you stand was removed" in err
    assert "uv" not in err
    assert door.venv.exists() is complete


@pytest.fixture(params=["busybox", "without GNU's programs"])
def elsewhere(request: pytest.FixtureRequest, door: Door) -> Door:
    """The script without GNU's programs: with busybox, or with programs that have only POSIX options."""
    busybox = shutil.which("busybox")
    if request.param == "busybox":
        if busybox is None:
            pytest.skip("busybox is not installed")
        for name in (*POSIX, "readlink"):
            (door.tools / name).symlink_to(busybox)
        door.command.insert(0, str(door.tools / "sh"))
    else:
        (door.tools / "sh").symlink_to("/bin/sh")
        for name in (*POSIX[:-1], "readlink"):
            (door.tools / name).write_text(NO_GNU.format(name=name, real=shutil.which(name)))
            (door.tools / name).chmod(0o755)
    (door.tools / "python3").symlink_to(os.path.realpath(sys.executable))
    door.env["PATH"] = str(door.tools)
    return door


def test_the_script_needs_no_program_of_gnus_and_is_found_through_links(elsewhere: Door) -> None:
    (elsewhere.tools / "deeper").mkdir()
    (elsewhere.tools / "cluster").symlink_to("deeper/cluster")
    (elsewhere.tools / "deeper" / "cluster").symlink_to(elsewhere.checkout / "cluster")
    elsewhere.command[-1] = str(elsewhere.tools / "cluster")
    assert elsewhere.works("up") == SETTING_UP
    assert elsewhere.works("status") == ""


def test_a_completion_makes_no_environment(door: Door) -> None:
    door.env["_CLUSTER_COMPLETE"] = "complete_bash"
    assert door.run() == (0, "", "")
    assert not door.venv.exists()
    del door.env["_CLUSTER_COMPLETE"]
    door.works("up")
    door.env["_CLUSTER_COMPLETE"] = "complete_bash"
    door.release("1.1")
    assert door.works("complete") == ""
    assert door.installed() == {"uv-1.0"}


def test_two_first_calls_at_once(door: Door) -> None:
    for child in [door.start("up"), door.start("up"), door.start("up")]:
        out, err = child.communicate(timeout=120)
        assert (child.returncode, out) == (0, "ran up\n"), err
    assert door.works("status") == ""


def test_an_interrupted_first_call_is_gone_on_with(door: Door) -> None:
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        child = door.start("up", shell='exec "$@"')
        assert child.stderr is not None
        assert child.stderr.readline() == SETTING_UP
        child.send_signal(number)
        child.communicate(timeout=120)
        door.works("up")
        assert door.installed() == {"uv-1.0"}
        shutil.rmtree(door.venv)


@pytest.mark.parametrize("what", ["python", "uv", "the package"])
def test_what_an_upgrade_or_a_crash_has_broken_is_made_anew(door: Door, what: str) -> None:
    door.works("up")
    if what == "the package":
        (found,) = door.venv.glob("lib/python*/site-packages/uv-1.0.dist-info")
        shutil.rmtree(found)
    else:
        file = door.venv / "bin" / what
        file.unlink(missing_ok=True)
        file.symlink_to("/usr/bin/that-was")
    door.works("up")
    assert door.works("up") == ""
    assert door.installed() == {"uv-1.0"}


def test_an_index_that_cannot_be_reached(door: Door) -> None:
    wheel, away = door.index / UV_WHEEL.format("1.0"), door.tools / "away"
    wheel.rename(away)
    door.env["UV_NO_CACHE"] = "1"
    code, out, err = door.run("up")
    assert (code, out) == (1, "")
    assert err.startswith(SETTING_UP)
    uv, _, ours = err.partition("uv could not install the packages of uv.lock")
    assert UV_WHEEL.format("1.0") in uv
    assert "Check the connection to the package index" in ours
    assert "run the command again: it goes on where it stopped." in ours
    away.rename(wheel)
    door.works("up")


def test_a_checkout_that_was_moved_or_copied_takes_its_environment_along(door: Door) -> None:
    door.works("up")
    moved = door.checkout.rename(door.checkout.with_name("another näme"))
    door.command[-1] = str(moved / "cluster")
    assert door.works("up") == ""
    copy = shutil.copytree(moved, moved.with_name("copy"), symlinks=True)
    door.command[-1] = str(copy / "cluster")
    assert door.works("up") == ""


def test_a_damaged_environment_is_reported_without_a_traceback(door: Door) -> None:
    door.works("up")
    (door.checkout / "cli" / "main.py").write_text("import a_package_that_is_not_there")
    code, _, err = door.run("up")
    assert code == 1
    assert err == (
        "No module named 'a_package_that_is_not_there': "
        f"{door.venv} is not whole. Remove it (rm -r '{door.venv}') and run the command again.\n"
    )


def test_ctrl_c_while_python_starts_is_the_end_without_a_traceback(door: Door) -> None:
    door.works("up")
    (packages_folder,) = door.venv.glob("lib/python*/site-packages")
    (packages_folder / "now.pth").write_text(
        f"import os, sys; 'status' in sys.orig_argv and os.kill(os.getpid(), {int(signal.SIGINT)})\n"
    )
    assert door.run("status", shell='exec "$@"') == (-signal.SIGINT, "", "")


def test_a_machine_without_a_python_that_does(door: Door, mounts: PrivateMounts) -> None:
    door.inside = mounts
    (door.tools / "uv").unlink()
    old = door.tools / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    mounts.run("mount", "--bind", str(old), os.path.realpath("/usr/bin/python3"))
    code, _, err = door.run("up")
    assert code == EXIT_REFUSED
    assert err.splitlines()[-1].startswith("slurm-stacks needs Python 3.11, 3.12 or 3.13, and found none.")
    assert not door.venv.exists()


def test_a_read_only_checkout(door: Door, mounts: PrivateMounts) -> None:
    door.inside = mounts
    place = str(door.checkout)

    def lock() -> None:
        mounts.run("mount", "--bind", place, place)
        mounts.run("mount", "-o", "remount,bind,ro", place)

    lock()
    code, _, err = door.run("up")
    assert code == EXIT_REFUSED
    assert err.startswith(f"{door.venv} must be changed and cannot be written by user root.")
    assert "copy the checkout to where you can write" in err
    mounts.run("umount", place)
    door.works("up")
    lock()
    assert door.works("up") == "", "a whole environment is only read"


@pytest.fixture
def theirs() -> Iterator[tuple[Door, OrdinaryUser]]:
    """A checkout of an ordinary user, in which `sudo ./cluster` has been run."""
    # Only root may enter pytest's own folders.
    folder = Path(tempfile.mkdtemp(prefix="front-door-"))
    folder.chmod(0o755)
    door = Door(folder)
    user = None
    try:
        user = OrdinaryUser(folder)
        door.works("up")
        door.inside = user
        yield door, user
    finally:
        if user is not None:
            user.close()
        shutil.rmtree(folder)


def test_an_environment_that_sudo_has_made(theirs: tuple[Door, OrdinaryUser]) -> None:
    door, user = theirs
    shutil.rmtree(door.tools / ".cache", ignore_errors=True)
    assert door.works("up") == "", "it serves as long as it need not be changed"
    door.release("1.1")
    user.own(door.checkout / "uv.lock")
    code, _, err = door.run("up")
    assert code == EXIT_REFUSED
    assert err.startswith(f"{door.venv} must be changed and cannot be written by user {NAME}.")
    assert f"remove it (sudo rm -r '{door.venv}')" in err
    assert "Permission denied" not in err
    shutil.rmtree(door.venv)
    assert door.works("up") == SETTING_UP


# --- a machine without uv ---------------------------------------------------------------------------------


@pytest.fixture
def without(door: Door) -> Door:
    """The same on a machine without uv."""
    (door.tools / "uv").unlink()
    file = door.index / UV_WHEEL.format("1.0")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    lock = (door.checkout / "uv.lock").read_text()
    entry = f'{{ path = "{file.name}" }}'
    assert entry in lock
    remote = f'{{ url = "{file.as_uri()}", hash = "sha256:{digest}" }}'
    (door.checkout / "uv.lock").write_text(lock.replace(entry, remote))
    return door


def test_the_locked_uv_is_fetched_once(without: Door) -> None:
    cache = without.tools / ".cache" / "slurm-stacks"
    fetched: set[tuple[str, int]] = set()
    for _ in range(2):
        assert without.works("up") == SETTING_UP
        fetched |= {(file.name, file.stat().st_ino) for file in cache.iterdir()}
        shutil.rmtree(without.venv)
    assert [name for name, _ in fetched] == ["uv-1.0"]


def test_a_uv_with_another_hash_is_not_used(without: Door) -> None:
    file = without.index / UV_WHEEL.format("1.0")
    content = file.read_bytes()
    file.write_bytes(content + b"x")
    code, out, err = without.run("up")
    assert (code, out) == (1, "")
    assert "uv.lock has sha256:" in err
    assert "it is not to be trusted" in err
    assert not (without.tools / ".cache" / "slurm-stacks" / "uv-1.0").exists()
    file.write_bytes(content)
    without.works("up")


def test_a_uv_that_cannot_be_fetched(without: Door) -> None:
    file = without.index / UV_WHEEL.format("1.0")
    file.unlink()
    code, _, err = without.run("up")
    assert code == 1
    assert f"It comes from {file.as_uri()}. Check the connection" in err
    assert "https://docs.astral.sh/uv/" in err


@pytest.mark.parametrize(
    ("machine", "wanted"),
    [
        (("linux", "x86_64", "glibc"), "manylinux_2_17_x86_64.manylinux2014_x86_64"),
        (("linux", "x86_64", ""), "musllinux_1_1_x86_64"),
        (("linux", "aarch64", "glibc"), "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64"),
        (("linux", "aarch64", ""), "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64"),
        (("darwin", "arm64", ""), "macosx_11_0_arm64"),
        (("darwin", "x86_64", ""), "macosx_10_12_x86_64"),
        (("linux", "alpha", "glibc"), None),
    ],
)
def test_each_machine_gets_its_own_file_of_the_lock(
    machine: tuple[str, str, str], wanted: str | None
) -> None:
    lock: dict[str, Any] = tomllib.loads((ROOT / "uv.lock").read_text())
    (uv,) = (package for package in lock["package"] if package["name"] == "uv")
    found = fetch_uv.choose(uv["wheels"], *machine)
    assert (found and found["url"].rpartition("/")[2]) == (
        wanted and f"uv-{uv['version']}-py3-none-{wanted}.whl"
    )
    assert found is None or found["hash"].startswith("sha256:")


# --- groups -----------------------------------------------------------------------------------------------


@pytest.fixture
def front_door(door: Door, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """A checkout that this process seems to run in."""
    door.works("up")
    monkeypatch.setattr(packages, "CHECKOUT", door.checkout)
    monkeypatch.setattr(sys, "prefix", str(door.venv))
    monkeypatch.setattr(sys, "executable", str(door.venv / "bin" / "python"))
    packages.provide.cache_clear()
    yield door
    packages.provide.cache_clear()


def test_a_group_is_added_once_and_follows_the_lock(
    front_door: Door, capfd: pytest.CaptureFixture[str]
) -> None:
    adding = "Adding packages to the Python environment in .venv: more.\n"
    for message in (adding, ""):
        packages.provide("more")
        packages.provide.cache_clear()
        assert capfd.readouterr() == ("", message)
    assert front_door.installed() == {"uv-1.0", "more-1.0"}
    front_door.release("1.1")
    packages.provide("more")
    assert capfd.readouterr() == ("", adding)
    assert front_door.installed() == {"uv-1.1", "more-1.1"}


def test_a_group_that_cannot_be_installed(front_door: Door, capfd: pytest.CaptureFixture[str]) -> None:
    with sentences.raises("packages.uv") as caught:
        packages.provide("none")
    assert caught.value.exit_code == 1
    assert "`none`" in capfd.readouterr().err


def test_an_environment_of_somebody_else_stays_as_it_is(
    front_door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(front_door.tools))
    packages.provide("more")
    assert front_door.installed() == {"uv-1.0"}


def test_the_groups_are_in_the_project() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert {"aws", "gcp", "report", "dev"} <= set(groups)
    included = {entry["include-group"] for entry in groups["dev"] if isinstance(entry, dict)}
    assert included == {"aws", "gcp", "report"}, "checkouts that tests make use this environment"
