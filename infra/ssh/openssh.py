"""OpenSSH's client: how it is called, how long it may take, and its failures in plain words."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from infra import pages
from infra.errors import EXIT_REFUSED, UserError
from infra.runner import interrupt, process
from infra.ssh import hostkeys
from infra.ssh.target import Target

OWN_FAILURE = 255
"""The exit status for ssh's own failures; any other is the remote command's."""
PAUSE_SECONDS = 3.0
LONGEST_LINE = 4096
"""pulumi-command stops reading at a line of 64 KiB, and what writes it hangs."""


_OWN_WORDS = ("Connection closed", "lost connection", "Permission denied (", "Host key verification failed")


class SshError(UserError):
    """The login machine was not reached, or not let us in; the remote command did not run to its end."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing
        """Whether a later attempt may succeed."""


class RemoteError(UserError):
    """The remote command ran, and failed; the text is what it said."""


def identified(target: Target, known_hosts: Path) -> dict[str, str]:
    """OpenSSH's options for the way to a login machine, and for its identity: the published keys alone."""
    options = {
        "PreferredAuthentications": "publickey",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": quoted(known_hosts),
        "GlobalKnownHostsFile": "none",
        "HostKeyAlias": hostkeys.ALIAS,
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
        "ConnectTimeout": str(target.connect_seconds),
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "4",
    }
    if target.proxy_command is not None:
        options["ProxyCommand"] = target.proxy_command
    if target.identity is not None:
        options["IdentitiesOnly"] = "yes"
    return options


def arguments(target: Target, known_hosts: Path) -> list[str]:
    """`ssh` with all of its options, up to and with the host; a command may follow.

    The user's own configuration is not read: a `Host *` there could forward, multiplex (and so hang whoever
    waits for the end of output) or trust keys that nobody published.
    """
    options = {"BatchMode": "yes", **identified(target, known_hosts), "LogLevel": "ERROR"}
    words = ["ssh", "-F", "none", "-p", str(target.port), "-l", target.user]
    words += [] if target.identity is None else ["-i", target.identity]
    return [*words, *(f"-o{name}={value}" for name, value in options.items()), "--", target.host]


def copying(target: Target, known_hosts: Path) -> list[str]:
    """`scp` with all of its options, up to the paths; those on the login machine begin with `HOST:`.

    By SFTP also where an older client would take a shell: then no path is read by one.
    """
    options = {"BatchMode": "yes", **identified(target, known_hosts), "LogLevel": "ERROR"}
    options |= {"HostName": target.host, "User": target.user, "Port": str(target.port)}
    words = ["scp", "-F", "none", "-s", "-r"]
    words += [] if target.identity is None else ["-i", target.identity]
    return [*words, *(f"-o{name}={value}" for name, value in options.items()), "--"]


def stanza(alias: str, target: Target, known_hosts: Path) -> str:
    """A section of OpenSSH's configuration by which its programs reach the login machine as `alias`."""
    options = {"HostName": target.host, "User": target.user, "Port": str(target.port)}
    if target.identity is not None:
        options["IdentityFile"] = quoted(Path(target.identity).expanduser())
    options |= identified(target, known_hosts)
    return "".join([f"Host {alias}\n", *(f"  {name} {value}\n" for name, value in options.items())])


def run(target: Target, line: str, *, stdin: str = "", seconds: float, stream: bool = False) -> str:
    """Run a line in the login machine's shell and return what it printed.

    A machine that cannot be reached is tried again for `target.patience` seconds.

    Args:
        seconds: how long one attempt may take.
        stream: pass the command's standard error on as it comes, not only if it fails.

    Raises:
        SshError: no connection, another host key, no key that is accepted, or it took too long.
        RemoteError: the line failed.
    """
    if target.identity is not None and not Path(target.identity).expanduser().is_file():
        raise SshError(f"there is no file {target.identity}, which was named as the key for {target.name}")
    deadline = time.monotonic() + target.patience
    while True:
        try:
            return _attempt(target, line, stdin, seconds, stream)
        except SshError as error:
            if not error.passing or time.monotonic() + PAUSE_SECONDS > deadline:
                raise
            print(f"{error}; trying again", file=sys.stderr, flush=True)
            time.sleep(PAUSE_SECONDS)


def _attempt(target: Target, line: str, stdin: str, seconds: float, stream: bool) -> str:
    def on_line(kind: str, text: str) -> None:
        if stream and kind == "stderr":
            print(text[:LONGEST_LINE], file=sys.stderr, flush=True)

    groups: list[int] = []
    with tempfile.TemporaryDirectory(prefix="slurm-stacks-ssh-") as folder, _interruptible() as processes:
        known_hosts = Path(folder) / "known_hosts"
        known_hosts.write_text(hostkeys.known_hosts(target.host_keys))
        try:
            finished = process.run(
                [*arguments(target, known_hosts), line],
                cwd=Path.cwd(),
                env=os.environ,
                stdin=stdin,
                on_line=on_line,
                processes=processes,
                on_start=groups.append,
                timeout=seconds,
            )
        except FileNotFoundError:
            raise UserError(
                "the login machine is reached by `ssh`, which is not on PATH: install OpenSSH's client "
                f"({pages.OPENSSH})",
                EXIT_REFUSED,
            ) from None
        finally:
            for group in groups:
                # A proxy's command may outlive its ssh.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
    if finished.timed_out:
        raise SshError(f"{target.name} did not answer within {seconds:g} s")
    if finished.returncode == OWN_FAILURE:
        raise explained(target, finished.stderr)
    if finished.returncode:
        said = "" if stream else finished.stderr.strip()
        raise RemoteError(said or f"the command on {target.name} ended with status {finished.returncode}")
    return finished.stdout


def is_own(stderr: str) -> bool:
    """Whether the words are of a connection that failed: scp has one exit status for all of its failures."""
    return any(words in stderr for words in _OWN_WORDS)


def explained(target: Target, stderr: str) -> SshError:
    """What ssh's own failure means, and what to do."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("Host key verification failed" in line for line in lines):
        return SshError(
            f"the machine that answers as {target.name} has another SSH host key than the one that the "
            "cluster published for its login machine, so nothing was sent to it. If the login machine was "
            "replaced, `up` publishes its new key; if not, somebody may be between you and it"
        )
    if any("Permission denied (" in line for line in lines):
        if target.identity is not None:
            return SshError(
                f"{target.name} does not let you in with the key {target.identity}: name another file or, if "
                "this one has a passphrase, add it to the SSH agent with `ssh-add`"
            )
        return SshError(
            f"{target.name} accepts no key of yours, neither of the SSH agent nor of ~/.ssh: "
            "add the right one with `ssh-add`, then run the command again"
        )
    why = lines[-1] if lines else "ssh gave no reason"
    way = f" through `{target.proxy_command}`" if target.proxy_command else ""
    return SshError(f"cannot reach {target.name} port {target.port}{way}: {why}", passing=True)


def quoted(path: Path) -> str:
    """A path as a value of an option: quoted against its spaces, its per cent signs doubled."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'


@contextlib.contextmanager
def _interruptible() -> Iterator[process.Processes]:
    """Whoever ends us ends ssh, which has a session of its own."""
    processes = process.Processes()

    def end(number: int, _frame: object) -> None:
        processes.signal(signal.SIGTERM)
        raise SystemExit(128 + number)

    before = {n: signal.signal(n, end) for n in interrupt.heard()}
    try:
        yield processes
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
