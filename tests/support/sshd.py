"""A real sshd on loopback with its own keys and users, and an SSH agent. Both end with the test.

Nothing of the machine's own sshd is used: neither its configuration nor its keys.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.support.checkout import until

SBIN = "/usr/sbin:/sbin:/usr/bin:/bin"
SSHD = shutil.which("sshd", path=SBIN)
PRIVILEGE_SEPARATION = Path("/run/sshd")
SHADOW = Path("/etc/shadow")
START_SECONDS = 120
END_SECONDS = 60


def missing() -> str | None:
    """Return why there can be no sshd here, or `None` if there can."""
    if SSHD is None:
        return "sshd is not installed (package openssh-server)"
    if shutil.which("ssh") is None or shutil.which("ssh-agent") is None:
        return "ssh is not installed (package openssh-client)"
    if os.getuid() == 0 and any(line.startswith("root:!") for line in SHADOW.read_text().splitlines()):
        return "the account of root is locked, and sshd lets nobody in who is"
    return None


def make_key(path: Path, kind: str = "ed25519") -> Path:
    """Make a private key, with its public key beside it. Returns the private key's path."""
    command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "a comment", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


def public(key: Path) -> str:
    return key.with_name(key.name + ".pub").read_text().strip()


def reserved_port(port: int = 0) -> socket.socket:
    """Return a socket that reserves a port: until it is closed, nobody else listens there or gets the port.

    A server that uses SO_REUSEADDR, as sshd does, can listen at the port meanwhile.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", port))
    return held


class Sshd:
    """One server. `client_key` may log in as the user who runs the tests."""

    user = getpass.getuser()

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "home").mkdir()
        self._folder = folder
        self._host_key = make_key(folder / "host")
        self.client_key = make_key(folder / "client")
        (folder / "authorized_keys").write_text(public(self.client_key) + "\n")
        self._held: list[socket.socket] = []
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def port(self) -> int:
        """The port at which the server listens, or did. It stays reserved while the server is stopped."""
        return int(self._held[-1].getsockname()[1])

    @property
    def host_key(self) -> str:
        """The public host key in the form of a boot report."""
        return public(self._host_key)

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def logins(self) -> int:
        """Return how many logins succeeded so far."""
        return self.log.count("Accepted publickey")

    def accept(self, key: Path) -> None:
        """Accept this key, too."""
        with (self._folder / "authorized_keys").open("a") as keys:
            keys.write(public(key) + "\n")

    def start(self, *, again: bool = False) -> None:
        """Listen on a new port, or `again` on the same one."""
        if os.getuid() == 0:
            # The service's unit makes this empty folder. It is never removed, because others may be using it.
            PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        if not again:
            self._held.append(reserved_port())
        config = self._folder / "config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self._host_key}\n"
            f"AuthorizedKeysFile {self._folder}/authorized_keys\nPidFile none\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
            "Subsystem sftp internal-sftp\nLogLevel VERBOSE\nMaxStartups 50\n"
            # bash reads ~/.bashrc for a command over SSH, and that may contain anything. If a test cuts off a
            # connection, a lock that pyenv leaves, for example, makes every later login wait a minute.
            f"SetEnv HOME={self._folder}/home\n"
        )
        assert SSHD is not None
        before = self._listens()
        self._process = subprocess.Popen(
            [SSHD, "-D", "-f", str(config), "-E", str(self._folder / "log")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        process = self._process

        def there() -> bool:
            assert process.poll() is None, f"sshd does not start: {self.log}"
            return self._listens() > before

        until(there, START_SECONDS, f"sshd on port {self.port}")

    def stop(self) -> None:
        """End the server and every connection at once, as a machine that is switched off."""
        if self._process is not None:
            end_tree(self._process)
            self._process = None

    def close(self) -> None:
        """Stop, and release the server's ports."""
        self.stop()
        for held in self._held:
            held.close()

    def freeze(self) -> None:
        """Accept connections without an answer, like a machine that is out of memory."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def _listens(self) -> int:
        """Return how often its log says that it listens. A connection would not tell who answers."""
        log = self._folder / "log"
        return log.read_text(errors="replace").count("Server listening on ") if log.exists() else 0


class Agent:
    """An SSH agent with its keys."""

    def __init__(self, folder: Path, *keys: Path) -> None:
        folder.mkdir(parents=True)
        self.socket = folder / "agent"
        self._process = subprocess.Popen(
            ["ssh-agent", "-D", "-a", str(self.socket)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            until(self._listens, START_SECONDS, "the agent")
            if keys:
                command = ["ssh-add", "-q", *map(str, keys)]
                subprocess.run(command, env={**os.environ, "SSH_AUTH_SOCK": str(self.socket)}, check=True)
        except BaseException:
            self.stop()
            raise

    def _listens(self) -> bool:
        # The socket's file exists before the agent listens at it.
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def stop(self) -> None:
        end_tree(self._process)


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a child of ours and all processes below it, also those in other sessions."""
    killed = kill_tree(process.pid)
    process.wait()
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline and any(map(_alive, killed)):
        time.sleep(0.01)


def kill_tree(root: int) -> list[int]:
    """Kill a process and all below it. Returns their pids."""
    found = [root]
    for pid in found:
        with contextlib.suppress(OSError):
            # The process is stopped first, so that it starts no others meanwhile.
            os.kill(pid, signal.SIGSTOP)
            found += children(pid)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
