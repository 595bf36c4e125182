"""The `./cluster` shim on a machine with faults; fakes replace Python's venv, pip and uv."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.checkout import ROOT, until
from tests.support.ordinary_user import NAME, OrdinaryUser
from tests.support.private_mounts import PrivateMounts

PYTHON = """#!/bin/sh
case "$*" in
    *sys.version_info*) exit 0 ;;
    *os.path.realpath*) echo "{tools}/python3" ;;
    *"import ensurepip"*) ! [ -e {tools}/no-ensurepip ] ;;
    "-m venv "*) echo venv >>{log}; mkdir -p "$3/bin" && ln -s "{tools}/python3" "$3/bin/python" ;;
    "-m pip "*)
        case "$*" in *" --require-hashes -r "*/uv.txt) read -r wanted <"$8" || : ;; esac
        echo "pip ${{wanted% }}" >>{log}
        [ -e {tools}/offline ] && {{ echo "no route to the index" >&2; exit 1; }}
        cp {tools}/uv "$(dirname "$0")/uv" ;;
    *) exec "{real}" "$@" ;;
esac
"""
UV = """#!/bin/sh
[ "$1" = --version ] && exit 0
shift
echo "sync $(echo "$*" | sed -n 's/.*--quiet *//p')" >>{log}
[ -e {tools}/slow ] && {{ touch {tools}/begun; while [ -e {tools}/slow ]; do sleep 0.02; done; }}
[ -e {tools}/offline ] && {{ echo "no route to the index" >&2; exit 2; }}
exit 0
"""
CLI = """
import os, sys
def main():
    for fd in (0, 1, 2):
        os.fstat(fd)
    print("ran", *sys.argv[1:])
"""
TESTS = "sync --group report --group aws --group gcp --group dev"
SETTING_UP = "Setting up the Python environment in .venv (the first time takes about a minute).\n"


POSIX = (
    "awk", "basename", "cat", "cksum", "cp", "cut", "df", "dirname", "env", "grep", "id", "ln", "mkdir", "mv",
    "rm", "sed", "sleep", "touch", "uname",
)  # fmt: skip
"""The programs of a Unix machine that the shim and the fakes may run. macOS and the BSDs have all of them."""
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


class Shim:
    """A checkout with the shim and the files that it reads."""

    def __init__(self, folder: Path) -> None:
        self.inside: Callable[..., list[str]] = lambda *command: list(command)
        self.variables: dict[str, str] = {}
        self.shell, self.path = "sh", "/usr/bin:/bin"
        self.tools, self.log = folder / "tools", folder / "tools" / "log"
        self.checkout = folder / "a checkout"
        (self.checkout / "cli").mkdir(parents=True)
        self.tools.mkdir()
        shutil.copy(ROOT / "cluster", self.checkout)
        (self.checkout / "pyproject.toml").touch()
        (self.checkout / "uv.lock").write_text('[[package]]\nname = "uv"\nversion = "1.2.3"\n\n')
        (self.checkout / "cli" / "__init__.py").touch()
        (self.checkout / "cli" / "main.py").write_text(CLI)
        for name, text in (("python3", PYTHON), ("uv", UV)):
            file = self.tools / name
            file.write_text(text.format(tools=self.tools, log=self.log, real=sys.executable))
            file.chmod(0o755)

    @property
    def venv(self) -> Path:
        return self.checkout / ".venv"

    def start(self, *arguments: str, shell: str = '"$@"') -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.inside(
                "sh", "-c", shell, "sh", *self.shell.split(), str(self.checkout / "cluster"), *arguments
            ),
            env={"PATH": f"{self.tools}:{self.path}", "HOME": str(self.tools), **self.variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, shell: str = '"$@"') -> tuple[int, str, str]:
        child = self.start(*arguments, shell=shell)
        out, err = child.communicate(timeout=60)
        return child.returncode, out, err

    def works(self, *arguments: str) -> str:
        """Run a command that must succeed. Returns the shim's own messages."""
        code, out, err = self.run(*arguments)
        assert (code, out) == (0, " ".join(["ran", *arguments]) + "\n"), err
        return err

    def did(self) -> list[str]:
        """Return what the fakes have done since the last call."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line.strip() for line in lines]

    def now(self, what: str) -> Path:
        """Set the fakes' fault from now on: `offline`, `slow`, `no-ensurepip`."""
        (self.tools / what).touch()
        return self.tools / what


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    return Shim(tmp_path)


@pytest.fixture
def mounts() -> Iterator[PrivateMounts]:
    made = PrivateMounts()
    yield made
    made.close()


def test_uv_itself_is_the_locked_one_by_its_hashes(shim: Shim) -> None:
    """pip takes no other file of that version, from whatever index (--require-hashes)."""
    shutil.copy(ROOT / "uv.lock", shim.checkout)
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    (uv,) = (package for package in lock["package"] if package["name"] == "uv")
    hashes = [file["hash"] for file in (uv["sdist"], *uv["wheels"])]
    assert len(hashes) > 5
    shim.works("up")
    _, pip, _ = shim.did()
    assert pip == " ".join([f"pip uv=={uv['version']}", *(f"--hash={one}" for one in hashes)])


def test_the_environment_is_made_once(shim: Shim) -> None:
    assert shim.works("up") == SETTING_UP
    assert shim.did() == ["venv", "pip uv==1.2.3", "sync"]
    assert shim.works("status") == ""
    assert shim.did() == []
    adding = "Adding packages to the Python environment in .venv:"
    assert shim.works("test") == f"{adding} report, aws, gcp, dev.\n"
    assert shim.did() == [TESTS]
    (shim.checkout / "uv.lock").write_text('name = "uv"\nversion = "1.2.4"\n')
    shim.works("report")
    assert shim.did() == [TESTS], "the tests' packages stay"


@pytest.fixture(params=["busybox", "without GNU's programs"])
def elsewhere(request: pytest.FixtureRequest, shim: Shim, tmp_path: Path) -> Shim:
    """The shim without GNU's programs: with busybox, or with programs that have only POSIX options."""
    places = tmp_path / "bin"
    places.mkdir()
    busybox = shutil.which("busybox")
    if request.param == "busybox":
        if busybox is None:
            pytest.skip("busybox is not installed")
        for name in (*POSIX, "sh", "readlink", "sha1sum"):
            has = subprocess.run(
                [busybox, "--list"], capture_output=True, text=True, check=True
            ).stdout.split()
            (places / name).symlink_to(busybox if name in has else str(shutil.which(name)))
        shim.shell = f"{busybox} sh"
    else:
        (places / "sh").symlink_to("/bin/sh")
        for name in (*POSIX, "readlink"):
            (places / name).write_text(NO_GNU.format(name=name, real=shutil.which(name)))
            (places / name).chmod(0o755)
        # macOS has shasum instead of sha1sum.
        (places / "shasum").symlink_to(str(shutil.which("shasum") or shutil.which("sha1sum")))
    shim.path = str(places)
    return shim


def test_the_shim_needs_no_program_of_gnus(elsewhere: Shim) -> None:
    (elsewhere.checkout / "Pulumi.yaml").write_text("name: slurm-stacks\nruntime: python\n")
    cloud = "config:\n  slurm-stacks:cluster:\n    provider: aws\n"
    (elsewhere.checkout / "Pulumi.far.yaml").write_text(cloud)
    (elsewhere.tools / "pulumi" / "workspaces").mkdir(parents=True)
    elsewhere.variables = {"PULUMI_HOME": str(elsewhere.tools / "pulumi")}
    assert elsewhere.works("up", "--stack", "far") == SETTING_UP
    assert elsewhere.did() == ["venv", "pip uv==1.2.3", "sync --group aws"]
    assert elsewhere.works("status") == ""
    # The shim continues with an earlier environment, under the lock.
    (elsewhere.checkout / "uv.lock").write_text('name = "uv"\nversion = "1.2.4"\n')
    gate = elsewhere.now("slow")
    first = elsewhere.start("up")
    until((elsewhere.tools / "begun").exists, 60, "the first call's work")
    second = elsewhere.start("status")
    assert second.stderr is not None
    assert "waiting for it" in second.stderr.readline()
    gate.unlink()
    for child in (first, second):
        assert (child.communicate(timeout=60)[1], child.returncode) in ((SETTING_UP, 0), ("", 0))


def test_the_shim_is_found_through_links(shim: Shim) -> None:
    (shim.tools / "deeper").mkdir()
    (shim.tools / "cluster").symlink_to("deeper/cluster")
    (shim.tools / "deeper" / "cluster").symlink_to(shim.checkout / "cluster")
    assert shim.works("up") == SETTING_UP
    shim.checkout = shim.tools
    assert shim.works("status") == ""


def test_help_version_and_completion_need_python_alone(shim: Shim) -> None:
    """They need no packages for tests and no cloud's library. A completion installs nothing at all."""
    (shim.checkout / "Pulumi.far.yaml").write_text("config:\n  slurm-stacks:cluster: {provider: aws}\n")
    shim.variables = {"_CLUSTER_COMPLETE": "complete_bash"}
    assert (shim.run(), shim.did()) == ((0, "", ""), [])
    shim.variables = {}
    looks = ((), ("--version",), ("test", "--help"), ("up", "-s", "far", "-h"), ("--show-completion",))
    for arguments in looks:
        code, out, _ = shim.run(*arguments)
        assert (code, out) == (0, " ".join(["ran", *arguments]) + "\n")
    assert shim.did() == ["venv", "pip uv==1.2.3", "sync"]
    shim.variables = {"_CLUSTER_COMPLETE": "complete_bash"}
    shim.works("up", "--stack", "far")
    assert shim.did() == []
    shim.variables = {}
    # `--help` of a command on the login machine is not ours.
    shim.works("ssh", "--stack", "far", "squeue", "--help")
    assert shim.did() == ["sync --group aws"]


def test_a_stack_that_is_not_named_has_its_clouds_client_too(shim: Shim) -> None:
    from cli.runner import selection

    (shim.checkout / "Pulumi.yaml").write_text("name: slurm-stacks\nruntime: python\n")
    for stack, cloud in (("far", "aws"), ("other", "gcp")):
        text = f"config:\n  slurm-stacks:cluster:\n    provider: {cloud}\n"
        (shim.checkout / f"Pulumi.{stack}.yaml").write_text(text)
    shim.variables = {"PULUMI_HOME": str(shim.tools / "pulumi")}
    shim.works("up")
    shim.did()

    def wanted(**variables: str) -> list[str]:
        (shim.venv / ".slurm-stacks").write_text("")
        shim.variables = {"PULUMI_HOME": str(shim.tools / "pulumi"), **variables}
        shim.works("status")
        return shim.did()

    assert wanted() == ["sync"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PULUMI_HOME", str(shim.tools / "pulumi"))
        note = selection.note(shim.checkout)
    note.parent.mkdir(parents=True)
    note.write_text('{\n    "stack": "ada/slurm-stacks/far"\n}')
    assert wanted() == ["sync --group aws"]
    assert wanted(PULUMI_STACK="other") == ["sync --group gcp"]
    assert wanted(PULUMI_STACK="other", SLURM_STACKS_STACK="far") == ["sync --group aws"]
    assert wanted(SLURM_STACKS_STACK="local") == ["sync"]


def test_a_cloud_client_is_for_stacks_on_that_cloud(shim: Shim) -> None:
    """Commands that act on such stacks need it. A plan, a report and the local stack do not."""
    stacks = {"here": "local  # not aws", "far": "aws", "quoted": '"aws"', "other": "gcp"}
    for stack, provider in stacks.items():
        text = "config:\n  aws:region: x\n  slurm-stacks:cluster:\n    # provider: aws\n    provider: "
        (shim.checkout / f"Pulumi.{stack}.yaml").write_text(f"{text}{provider}\n")
    shim.works("up")
    assert shim.did() == ["venv", "pip uv==1.2.3", "sync"]
    for arguments in (
        ("up", "--stack", "here"),
        ("plan", "--stack", "far"),
        ("report", "-s", "no-such"),
        ("up", "--stack", "no-such"),
        ("exec", "--", "program", "--stack", "far"),
        ("up", "--stack"),
    ):
        shim.works(*arguments)
    assert shim.did() == ["sync --group report"]
    spelled = (("up", "--stack", "far"), ("status", "-s", "quoted"), ("down", "--stack=far"), ("up", "-sfar"))
    for arguments in spelled:
        (shim.venv / ".slurm-stacks").write_text("")
        shim.works(*arguments)
        assert shim.did() == ["sync --group aws"], arguments
        shim.works(*arguments)
        assert shim.did() == []
    shim.works("run", "--stack", "far")
    assert shim.did() == ["sync --group aws --group report"]
    shim.works("up", "--stack", "other")
    assert shim.did() == ["sync --group aws --group report --group gcp"]


def test_two_first_calls_at_once(shim: Shim) -> None:
    gate = shim.now("slow")
    first = shim.start("test")
    until((shim.tools / "begun").exists, 60, "the first call's work")
    second = shim.start("up")
    assert second.stderr is not None
    assert (
        second.stderr.readline()
        == "Another ./cluster is setting up the Python environment; waiting for it.\n"
    )
    gate.unlink()
    for child in (first, second):
        child.communicate(timeout=60)
        assert child.returncode == 0
    assert shim.did() == ["venv", "pip uv==1.2.3", TESTS], "the second had all it needs"
    shim.works("test")
    assert shim.did() == [], "and has not taken the first one's packages away"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_first_call_is_gone_on_with(shim: Shim, number: signal.Signals) -> None:
    gate = shim.now("slow")
    child = shim.start("up", shell='exec "$@"')
    until((shim.tools / "begun").exists, 60, "the packages")
    child.send_signal(number)
    gate.unlink()
    child.communicate(timeout=60)
    assert child.returncode != 0
    shim.did()
    assert SETTING_UP in shim.works("up")
    assert shim.did() == ["sync"]


def test_an_index_that_cannot_be_reached(shim: Shim) -> None:
    index = shim.now("offline")
    for step in ("pip could not install uv 1.2.3", "uv could not install the packages of uv.lock"):
        code, out, err = shim.run("up")
        assert (code, out) == (1, "")
        assert "no route to the index\n" in err
        assert step in err
        assert "Check the connection to the package index" in err
        assert " are free there)" in err
        assert "run the command again" in err
        index.unlink()
        if step.startswith("pip"):
            shim.works("up")
            index = shim.now("offline")
            (shim.checkout / "uv.lock").write_text('name = "uv"\nversion = "1.2.4"\n')
    assert shim.works("up") == SETTING_UP


def test_what_an_upgrade_or_a_crash_has_broken_is_made_anew(shim: Shim) -> None:
    shim.works("test")
    shim.did()
    (shim.venv / "bin" / "python").unlink()
    (shim.venv / "bin" / "python").symlink_to("/usr/bin/python3.that-was")
    assert shim.works("up") == SETTING_UP
    assert shim.did() == ["venv", "pip uv==1.2.3", TESTS], "with what it had"
    (shim.venv / ".slurm-stacks").unlink()
    (shim.venv / "bin" / "uv").write_text("\0half of it")
    shim.works("up")
    assert shim.did() == ["venv", "pip uv==1.2.3", "sync"]


def test_a_checkout_that_was_moved_or_copied_takes_its_environment_along(shim: Shim) -> None:
    shim.works("up")
    shim.did()
    shim.checkout = shim.checkout.rename(shim.checkout.with_name("another näme"))
    assert shim.works("up") == ""
    shutil.copytree(shim.checkout, shim.checkout.with_name("copy"), symlinks=True)
    shim.checkout = shim.checkout.with_name("copy")
    assert shim.works("up") == ""
    assert shim.did() == []


def test_a_damaged_environment_is_said_without_a_traceback(shim: Shim) -> None:
    shim.works("up")
    (shim.checkout / "cli" / "main.py").write_text("import a_package_that_is_not_there")
    code, _, err = shim.run("up")
    assert code == 1
    assert err == (
        "No module named 'a_package_that_is_not_there': "
        f"{shim.venv} is not whole. Remove it (rm -r '{shim.venv}') and run the command again.\n"
    )


def test_ctrl_c_while_python_starts_is_the_end_without_a_traceback(shim: Shim) -> None:
    shim.works("up")
    # This is a real environment, in which a line of a package runs at Python's start.
    python, version = os.path.realpath(sys.executable), f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (shim.venv / "pyvenv.cfg").write_text(f"home = {os.path.dirname(python)}\n")  # noqa: PTH120
    (shim.venv / "bin" / "python").unlink()
    (shim.venv / "bin" / "python").symlink_to(python)
    packages = shim.venv / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    assert shim.works("status") == ""
    (packages / "now.pth").write_text(f"import os; os.kill(os.getpid(), {int(signal.SIGINT)})\n")
    assert shim.run("status", shell='exec "$@"') == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_stay_nobodys(shim: Shim, closed: str) -> None:
    shim.works("up")
    code, out, err = shim.run("up", shell=f'"$@" {closed}')
    assert (code, err) == (0, "")
    assert out == ("" if ">&-" in closed.replace("2>&-", "") else "ran up\n")


@pytest.mark.skipif(os.geteuid() == 0 or shutil.which("sudo") is not None, reason="root would install it")
def test_a_python_without_venv_says_what_to_install(shim: Shim) -> None:
    shim.now("no-ensurepip")
    code, _, err = shim.run("up")
    assert code == 3
    assert "venv module" in err
    assert "as root: apt-get install python3-venv" in err
    assert shim.did() == []


def test_a_machine_without_a_python_that_does(shim: Shim, mounts: PrivateMounts) -> None:
    shim.inside = mounts
    old = shim.tools / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    mounts.run("mount", "--bind", str(old), os.path.realpath("/usr/bin/python3"))
    code, _, err = shim.run("up")
    assert code == 3
    assert err.splitlines()[-1].startswith("slurm-stacks needs Python 3.11, 3.12 or 3.13, and found none.")
    assert not shim.venv.exists()


def test_a_read_only_checkout(shim: Shim, mounts: PrivateMounts) -> None:
    shim.inside = mounts
    place = str(shim.checkout)
    mounts.run("mount", "--bind", place, place)
    mounts.run("mount", "-o", "remount,bind,ro", place)
    code, _, err = shim.run("up")
    assert code == 3
    assert f"{shim.venv} cannot be made: Read-only file system. Put the checkout where you can write" in err
    mounts.run("umount", place)
    shim.works("up")
    mounts.run("mount", "--bind", place, place)
    mounts.run("mount", "-o", "remount,bind,ro", place)
    assert shim.works("up") == "", "a whole environment is only read"
    code, _, err = shim.run("test")
    assert code == 3
    assert f"{shim.venv}" in err


def test_a_checkout_that_is_mounted_noexec(shim: Shim, mounts: PrivateMounts) -> None:
    shim.inside = mounts
    kept = shim.checkout.rename(shim.checkout.with_name("kept"))
    shim.checkout.mkdir()
    mounts.tmpfs(shim.checkout, "4m", "noexec")
    mounts.run("cp", "-r", f"{kept}/.", str(shim.checkout))
    code, _, err = shim.run("up")
    assert code == 3
    assert f"{shim.venv}/bin/uv cannot be executed: Permission denied." in err
    assert "mounted noexec, put the checkout elsewhere" in err


def test_no_room_for_the_last_word(shim: Shim, mounts: PrivateMounts) -> None:
    shim.inside = mounts
    kept = shim.checkout.rename(shim.checkout.with_name("kept"))
    shim.checkout.mkdir()
    mounts.tmpfs(shim.checkout, "1m")
    mounts.run("cp", "-r", f"{kept}/.", str(shim.checkout))
    shim.works("up")
    mounts.run("rm", str(shim.venv / ".slurm-stacks"))
    mounts.fill(shim.checkout)
    code, _, err = shim.run("up")
    assert code == 1
    assert err.splitlines()[-1] == f"{shim.venv}/.slurm-stacks cannot be written; 0 are free there."
    mounts.empty(shim.checkout)
    assert shim.works("up") == SETTING_UP


@pytest.fixture
def theirs() -> Iterator[tuple[Shim, OrdinaryUser]]:
    """A checkout of an ordinary user, in which `sudo ./cluster` has been run."""
    # Only root may enter pytest's own folders.
    folder = Path(tempfile.mkdtemp(prefix="shim-"))
    folder.chmod(0o755)
    shim = Shim(folder)
    user = None
    try:
        user = OrdinaryUser(folder)
        shim.works("up")
        shim.inside = user
        yield shim, user
    finally:
        if user is not None:
            user.close()
        shutil.rmtree(folder)


def test_an_environment_that_sudo_has_made(theirs: tuple[Shim, OrdinaryUser]) -> None:
    shim, user = theirs
    assert shim.works("up") == "", "it serves as long as it need not be changed"
    code, _, err = shim.run("test")
    assert code == 3
    assert f"{shim.venv} belongs to root and cannot be written by you, {NAME}." in err
    assert f"remove it (sudo rm -r '{shim.venv}') and run the command again" in err
    assert "Permission denied" not in err
    shutil.rmtree(shim.venv)
    user.own(shim.tools)
    assert shim.works("test") == SETTING_UP
    os.chown(shim.checkout, 0, 0)
    shutil.rmtree(shim.venv)
    code, _, err = shim.run("up")
    assert code == 3
    assert f"{shim.venv} cannot be made: Permission denied." in err
