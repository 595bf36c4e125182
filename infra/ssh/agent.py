"""The SSH agent, which keeps the private key, so that no key enters Pulumi's state."""

from __future__ import annotations

import os
import socket
import struct

from infra.errors import EXIT_REFUSED, UserError

VARIABLE = "SSH_AUTH_SOCK"
ANSWER_SECONDS = 5.0
# A message is its length, its type and its content (draft-ietf-sshm-ssh-agent).
_REQUEST_IDENTITIES = b"\0\0\0\x01\x0b"
_IDENTITIES = 12


def require() -> None:
    """Checks that there is an agent with a key in it.

    Raises:
        UserError: Exit 3. There is no such agent, and the message says how to get one.
    """
    path = os.environ.get(VARIABLE, "")
    if not path:
        raise UserError(
            f"there is no SSH agent here ({VARIABLE} is not set), and the login machine is reached with a "
            'key from an agent. Run `eval "$(ssh-agent)"` and `ssh-add`, then the command again.',
            EXIT_REFUSED,
        )
    try:
        keys = _key_count(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"the SSH agent at {VARIABLE}={path} does not answer ({error}). "
            'Start another with `eval "$(ssh-agent)"` and `ssh-add`, then run the command again.',
            EXIT_REFUSED,
        ) from error
    if not keys:
        raise UserError(
            f"the SSH agent at {VARIABLE}={path} holds no key. Add the one that the login machine accepts "
            "with `ssh-add`, then run the command again.",
            EXIT_REFUSED,
        )


def _key_count(path: str) -> int:
    """The number of keys that the agent holds.

    Raises:
        OSError: Nothing listens there, or nothing answers in time.
        ValueError: The answer is not that of an agent.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(path)
        connection.sendall(_REQUEST_IDENTITIES)
        answer = b""
        while len(answer) < 9:
            data = connection.recv(4096)
            if not data:
                raise ValueError("it closed the connection")
            answer += data
    _, kind, count = struct.unpack(">IBI", answer[:9])
    if kind != _IDENTITIES:
        raise ValueError(f"it answered with a message of type {kind}")
    return int(count)
