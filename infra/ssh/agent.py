"""The SSH agent: it keeps the private key, so that none has to enter Pulumi's state."""

from __future__ import annotations

import os
import socket
import struct

from infra.errors import EXIT_REFUSED, UserError

VARIABLE = "SSH_AUTH_SOCK"
ANSWER_SECONDS = 5.0
# draft-ietf-sshm-ssh-agent: a message is its length, its type, its content.
_REQUEST_IDENTITIES = b"\0\0\0\x01\x0b"
_IDENTITIES = 12


def require() -> None:
    """Have an agent with a key in it.

    Raises:
        UserError: exit 3; there is none, and the message says how to get one.
    """
    path = os.environ.get(VARIABLE, "")
    if not path:
        raise UserError(
            f"there is no SSH agent here ({VARIABLE} is not set), and the login machine is reached with a "
            'key from an agent. Run `eval "$(ssh-agent)"` and `ssh-add`, then the command again.',
            EXIT_REFUSED,
        )
    try:
        keys = _count(path)
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


def _count(path: str) -> int:
    """How many keys the agent holds.

    Raises:
        OSError: nobody listens, or nobody answers in time.
        ValueError: the answer is not an agent's.
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
