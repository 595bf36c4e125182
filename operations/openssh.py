"""Calls of OpenSSH's client, with time limits, and its failures in plain words."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError
from infra.ssh import Target
from operations import pages, processes
from operations.host_keys import ALIAS, known_hosts
from operations.signals import handled
from operations.waiting import attempts

OWN_FAILURE = 255
"""The exit status of ssh's own failures; any other status is the remote command's."""
PAUSE_SECONDS = 3.0

_OWN_WORDS = ("Connection closed", "lost connection", "Permission denied (", "Host key verification failed")


class SshError(UserError):
    """The login machine was not reached or refused the login; the remote command did not run to its end."""

    def __init__(self, message: str, *, code: str, passing: bool = False) -> None:
        super().__init__(message, code=code)
        self.passing = passing
        """Whether a later attempt may succeed."""


class RemoteError(UserError):
    """The remote command ran and failed; the text is its own message."""


def connection_options(target: Target, known_hosts: Path) -> dict[str, str]:
    """OpenSSH's options for the connection and the machine's identity: only published host keys count."""
    options = {
        "PreferredAuthentications": "publickey",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": quoted(known_hosts),
        "GlobalKnownHostsFile": "none",
        "HostKeyAlias": ALIAS,
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
    """Return the `ssh` command with all options up to and including the host; a remote command may follow.

    The user's own configuration is not read: a `Host *` there could forward, multiplex (then a program that
    waits for the end of the output hangs) or trust keys that nobody published.
    """
    options = {"BatchMode": "yes", **connection_options(target, known_hosts), "LogLevel": "ERROR"}
    words = ["ssh", "-F", "none", "-p", str(target.port), "-l", target.user]
    words += [] if target.identity is None else ["-i", target.identity]
    return [*words, *(f"-o{name}={value}" for name, value in options.items()), "--", target.host]


def scp_arguments(target: Target, known_hosts: Path) -> list[str]:
    """Return the `scp` command up to the paths; those on the login machine begin with `HOST:`.

    It uses SFTP even where an older client would use a remote shell, so that no shell interprets a path.
    """
    options = {"BatchMode": "yes", **connection_options(target, known_hosts), "LogLevel": "ERROR"}
    options |= {"HostName": target.host, "User": target.user, "Port": str(target.port)}
    words = ["scp", "-F", "none", "-s", "-r"]
    words += [] if target.identity is None else ["-i", target.identity]
    return [*words, *(f"-o{name}={value}" for name, value in options.items()), "--"]


def stanza(alias: str, target: Target, known_hosts: Path) -> str:
    """Return a section of OpenSSH's configuration by which the login machine is reached as `alias`."""
    options = {"HostName": target.host, "User": target.user, "Port": str(target.port)}
    if target.identity is not None:
        options["IdentityFile"] = quoted(Path(target.identity).expanduser())
    options |= connection_options(target, known_hosts)
    return "".join([f"Host {alias}\n", *(f"  {name} {value}\n" for name, value in options.items())])


def run(target: Target, line: str, *, stdin: str = "", seconds: float, stream: bool = False) -> str:
    """Run a line in the login machine's shell and return what it printed.

    A machine that cannot be reached is tried again for `target.patience` seconds.

    Args:
        seconds: The time limit of one attempt.
        stream: Whether the command's standard error is passed on immediately, not only after a failure.

    Raises:
        SshError: There was no connection, another host key, no accepted key, or the attempt took too long.
        RemoteError: The line failed.
    """
    if target.identity is not None and not Path(target.identity).expanduser().is_file():
        raise SshError(
            f"there is no file {target.identity}, which was named as the key for {target.name}",
            code="ssh.no-identity",
        )
    for left in attempts(target.patience, PAUSE_SECONDS):
        try:
            return _attempt(target, line, stdin, seconds, stream)
        except SshError as error:
            if not error.passing or left < PAUSE_SECONDS:
                raise
            print(f"{error}; trying again", file=sys.stderr, flush=True)
    raise AssertionError("the last attempt returns or raises")


def _attempt(target: Target, line: str, stdin: str, seconds: float, stream: bool) -> str:
    def on_line(kind: str, text: str) -> None:
        if stream and kind == "stderr":
            print(text, file=sys.stderr, flush=True)

    running = processes.Processes()

    def end(number: int, _frame: object) -> None:
        # ssh has a session of its own, so it does not get the signal.
        running.signal(signal.SIGTERM)
        raise SystemExit(128 + number)

    groups: list[int] = []
    with tempfile.TemporaryDirectory(prefix="slurm-stacks-ssh-") as folder, handled(end):
        file = Path(folder) / "known_hosts"
        file.write_text(known_hosts(target.host_keys))
        try:
            finished = processes.run(
                [*arguments(target, file), line],
                cwd=Path.cwd(),
                env=os.environ,
                stdin=stdin,
                on_line=on_line,
                processes=running,
                on_start=groups.append,
                timeout=seconds,
            )
        except FileNotFoundError:
            raise UserError(
                "the login machine is reached by `ssh`, which is not on PATH: install OpenSSH's client "
                f"({pages.OPENSSH})",
                EXIT_REFUSED,
                code="ssh.no-client",
            ) from None
        finally:
            for group in groups:
                # A ProxyCommand may outlive its ssh.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
    if finished.timed_out:
        raise SshError(f"{target.name} did not answer within {seconds:g} s", code="ssh.no-answer")
    if finished.returncode == OWN_FAILURE:
        raise explain(target, finished.stderr)
    if finished.returncode:
        words = "" if stream else finished.stderr.strip()
        raise RemoteError(
            words or f"the command on {target.name} ended with status {finished.returncode}",
            code="ssh.remote-failed",
        )
    return finished.stdout


def is_connection_failure(stderr: str) -> bool:
    """Whether the text reports a failed connection: scp has one exit status for all failures."""
    return any(words in stderr for words in _OWN_WORDS)


def explain(target: Target, stderr: str) -> SshError:
    """Return the meaning of ssh's own failure, and what to do."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("Host key verification failed" in line for line in lines):
        return SshError(
            f"the machine that answers as {target.name} has another SSH host key than the one that the "
            "cluster published for its login machine, so nothing was sent to it. If the login machine was "
            "replaced, `up` publishes its new key; if not, somebody may be between you and it",
            code="ssh.host-key",
        )
    if any("Permission denied (" in line for line in lines):
        if target.identity is not None:
            return SshError(
                f"{target.name} does not let you in with the key {target.identity}: name another file or, if "
                "this one has a passphrase, add it to the SSH agent with `ssh-add`",
                code="ssh.key-refused",
            )
        return SshError(
            f"{target.name} accepts no key of yours, neither of the SSH agent nor of ~/.ssh: "
            "add the right one with `ssh-add`, then run the command again",
            code="ssh.no-key-accepted",
        )
    why = lines[-1] if lines else "ssh gave no reason"
    way = f" through `{target.proxy_command}`" if target.proxy_command else ""
    return SshError(
        f"cannot reach {target.name} port {target.port}{way}: {why}", passing=True, code="ssh.unreachable"
    )


def quoted(path: Path) -> str:
    """Return a path as the value of an option: in quotes because of spaces, with per cent signs doubled."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'
