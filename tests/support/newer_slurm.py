"""A Slurm newer than this machine's: Debian 13, whose Slurm is 24.11, in a folder; commands run inside it.

The folder is made once by debootstrap from the mirror that this machine's own packages come from, and kept in
the cache. What runs inside sees it as its root, with this machine's Python and checkout at their own paths,
in mount and pid namespaces that end with the test's process: no mount and no process can be left behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infra.node.processes import children
from infra.node.slurm import version
from infra.runner.locations import cache_root
from tests.support.checkout import ROOT

SUITE = "trixie"
RELEASE = (24, 11)
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "python3")
HEARTBEAT_SECONDS = 15.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Namespaces that die with their first process; mounts inside are seen by nobody else.
_APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child")

# The folder as root. Its first process collects orphans, as an ignored SIGCHLD does, and ends with our pipe.
_INSIDE = """
set -eu
root=$1 work=$2
shift 2
for name in dev sys; do mount --rbind "/$name" "$root/$name"; done
mount -t proc proc "$root/proc"
for name in tmp run; do mount -t tmpfs -o mode=1777 tmpfs "$root/$name"; done
mount -t tmpfs -o mode=700 tmpfs "$root/root"
place() {
    if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$(dirname "$root$1")"; touch "$root$1"; fi
    mount --bind "$1" "$root$1"
}
for path in "$@"; do place "$path"; mount -o remount,bind,ro "$root$path"; done
place "$work"
exec chroot "$root" python3 -c "$FIRST"
"""
_FIRST = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
sys.stdin.read()
"""


class Unavailable(Exception):  # noqa: N818 - a reason to skip, no error
    """Why there can be no newer Slurm here."""


class NewerSlurm:
    """A running root of its own.

    Args:
        folder: the bootstrapped distribution.
        work: the one folder that is shared with this machine and writable, at the same path.

    Raises:
        Unavailable: the namespaces or mounts cannot be made here.
    """

    def __init__(self, folder: Path, work: Path) -> None:
        # A checkout's environment may be a link to another one's.
        environment = (ROOT / ".venv").resolve()
        more = [] if environment.is_relative_to(ROOT.resolve()) or not environment.exists() else [environment]
        seen = dict.fromkeys([Path("/etc/hosts"), *_interpreter(), ROOT, *more])
        self._keeper = subprocess.Popen(
            [*_APART, "sh", "-c", _INSIDE, "sh", str(folder), str(work), *map(str, seen)],
            env={"PATH": PATH, "FIRST": _FIRST},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout
        if self._keeper.stdout.readline() != "ready\n":
            _, words = self._keeper.communicate()
            raise Unavailable(f"no root of its own can be mounted: {words.strip()}")
        (self.pid,) = children(self._keeper.pid)
        self.root = Path(f"/proc/{self.pid}/root")
        """What is inside, seen from this machine."""
        self.work = work
        self.namespace = str(Path(f"/proc/{self.pid}/ns/pid").readlink())
        """Names the namespace of everything inside."""

    def command(self, *command: str) -> list[str]:
        """The command that runs this one inside."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--root", "--wd", "--", *command]

    def run(
        self, *command: str, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*command),
            env={"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def close(self) -> None:
        """End everything inside."""
        # The first process reads the pipe; as it ends the kernel ends all others of its namespace.
        self._keeper.communicate(timeout=120)


def folder(say: Callable[[str], None]) -> Path:
    """The bootstrapped distribution; made on first use (about a minute and 300 MB).

    Raises:
        Unavailable: it cannot be made here.
    """
    _check()
    made = cache_root() / "tests" / "debian-13"
    made.parent.mkdir(parents=True, exist_ok=True)
    with made.with_name(f".{made.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that makes {made}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _install_debootstrap(say)
            draft = made.with_name(f".{made.name}.new")
            mirror = _mirror(draft.with_suffix(".release"))
            say(f"making a Debian 13 with Slurm 24.11 in {made} (about a minute and 300 MB, once)")
            # Safe: whatever was mounted there went with its namespace.
            shutil.rmtree(draft, ignore_errors=True)
            _bootstrap(draft, mirror, say)
            draft.rename(made)
    return made


def _check() -> None:
    """Raises Unavailable for what can be known without trying."""
    if os.getuid() != 0:
        raise Unavailable("only root can bootstrap a distribution and enter it")
    own = shutil.which("slurmctld", path=PATH)
    if own:
        release = version.parse(
            subprocess.run([own, "-V"], capture_output=True, text=True, check=True).stdout
        )
        if release >= RELEASE:
            raise Unavailable(f"this machine's own Slurm is {version.spell(release)}: every test runs on it")
    tried = subprocess.run([*_APART, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise Unavailable(f"this machine gives no namespaces: {tried.stderr.strip()}")


def _interpreter() -> list[Path]:
    """What this Python consists of, apart from its environment."""
    base = Path(sys.base_prefix)
    if base == Path("/usr"):
        # A distribution's: not all of /usr, which is the other distribution's as well.
        return [Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))]
    return [base, base.resolve()]


def _install_debootstrap(say: Callable[[str], None]) -> None:
    if shutil.which("debootstrap", path=PATH):
        return
    if not shutil.which("apt-get"):
        raise Unavailable("debootstrap is not installed, and there is no apt-get to install it")
    say("installing debootstrap (the distribution's package)")
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "debootstrap"]):
        done = subprocess.run(
            ["apt-get", *arguments],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Unavailable(f"apt-get {arguments[0]} failed: {_last_line(done.stderr or done.stdout)}")


def _mirror(scratch: Path) -> str:
    """The first of this machine's package sources that carries the suite."""
    if not shutil.which("apt-get"):
        raise Unavailable("this machine has no apt, whose mirror could be asked for Debian 13")
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN)"],
        capture_output=True,
        text=True,
        check=False,
    )
    reason = "no package source"
    # Others carry a suite of this name too, with nothing but their own packages in it.
    sources = [line.partition(" ") for line in dict.fromkeys(listed.stdout.splitlines())]
    for uri in dict.fromkeys(uri for uri, _, origin in sources if origin in ("Debian", "")):
        # apt's own downloader: it knows apt's proxy and certificates.
        tried = subprocess.run(
            ["/usr/lib/apt/apt-helper", "download-file", f"{uri}dists/{SUITE}/InRelease", str(scratch)],
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.returncode == 0:
            scratch.unlink()
            return uri
        reason = next((line for line in tried.stderr.splitlines() if line.startswith("E:")), tried.stderr)
    raise Unavailable(f"none of this machine's package sources can be asked for Debian 13: {reason}")


def _bootstrap(draft: Path, mirror: str, say: Callable[[str], None]) -> None:
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE]
    log = draft.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(
            # Apart, so that its mounts and daemons end with it; and it ends with us, however we end.
            ["setpriv", "--pdeathsig", "KILL", *_APART, *command, str(draft), mirror],
            env={**os.environ, "PATH": PATH, **_apt_proxy()},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        said = started = time.monotonic()
        try:
            while process.poll() is None:
                time.sleep(0.2)
                if time.monotonic() - said >= HEARTBEAT_SECONDS:
                    said = time.monotonic()
                    say(f"debootstrap: {_last_line(log.read_text())} ({said - started:.0f} s)")
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise Unavailable(f"debootstrap failed, see {log}: {_last_line(log.read_text())}")
    log.unlink()


def _apt_proxy() -> dict[str, str]:
    """debootstrap does not read apt's settings."""
    shown = subprocess.run(
        ["apt-config", "dump", "--format", "%v", "Acquire::http::Proxy"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {"http_proxy": shown.stdout.strip()} if shown.stdout.strip() else {}


def _last_line(text: str) -> str:
    lines: Sequence[str] = text.strip().splitlines() or ["(it said nothing)"]
    return lines[-1]
