"""Which engine the Pulumi program is running under, for the few places that must know."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Literal

Mode = Literal["pulumi", "embedded", "plan"]
"""`pulumi`: the real engine. `plan`: nothing is executed, and the program must touch nothing either."""
UNKNOWN = "<"
"""How a value begins that a `plan` cannot know (`placeholders`)."""

MODE: ContextVar[Mode] = ContextVar("slurm_stacks_runner_mode", default="pulumi")


def current() -> Mode:
    """The mode of the program that calls this; `pulumi` unless one of our runners started it."""
    return MODE.get()
