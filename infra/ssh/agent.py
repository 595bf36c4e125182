"""The SSH agent, which keeps the private key, so that no key enters Pulumi's state."""

from __future__ import annotations

import os
import subprocess

from infra.errors import EXIT_REFUSED, UserError

VARIABLE = "SSH_AUTH_SOCK"
ANSWER_SECONDS = 5.0
EMPTY = "The agent has no identities"


def require() -> None:
    """Checks that there is an agent with a key in it. OpenSSH's `ssh-add` asks it.

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
        asked = subprocess.run(
            ["ssh-add", "-l"], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except FileNotFoundError:
        raise UserError(
            "the SSH agent is asked by `ssh-add`, which is not on PATH. Install OpenSSH's client, then run "
            "the command again.",
            EXIT_REFUSED,
        ) from None
    except subprocess.TimeoutExpired as error:
        raise _no_answer(path, str(error)) from error
    if asked.stdout.startswith(EMPTY):
        raise UserError(
            f"the SSH agent at {VARIABLE}={path} holds no key. Add the one that the login machine accepts "
            "with `ssh-add`, then run the command again.",
            EXIT_REFUSED,
        )
    if asked.returncode:
        raise _no_answer(path, asked.stderr.strip() or "it closed the connection")


def _no_answer(path: str, why: str) -> UserError:
    return UserError(
        f"the SSH agent at {VARIABLE}={path} does not answer ({why}). "
        'Start another with `eval "$(ssh-agent)"` and `ssh-add`, then run the command again.',
        EXIT_REFUSED,
    )
