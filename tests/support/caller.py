"""Takes away what the shell of the user who runs the tests would change in them."""

from __future__ import annotations

from collections.abc import MutableMapping

from node.slurm import environment
from tests.support.checkout import ROOT

OPTIONS = {
    "SLURM_STACKS_HISTORIES", "SLURM_STACKS_HISTORY_LENGTH", "SLURM_STACKS_PYXIS_PACKAGES",
    "SLURM_STACKS_TEST_LDAP", "SLURM_STACKS_TEST_SLURM", "SLURM_STACKS_TEST_TORCH",
}  # fmt: skip
"""The variables of ours with which a user asks the tests themselves for something."""
APPEARANCE = ("COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""The variables that change how output looks."""


def forget(env: MutableMapping[str, str]) -> None:
    """Change an environment, so that tests and the programs that they start depend on the checkout alone.

    The tests make their own clusters; no variable of the caller may lead them elsewhere.
    """
    kept = environment.without_slurm(env)
    for name in list(env):
        ours = name.startswith((environment.OURS, "PULUMI_CONFIG_")) and name not in OPTIONS
        if name not in kept or ours or name in APPEARANCE:
            del env[name]
    # Container images often set it; then every worker compiles every test, and every command our code.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env.update({"PYTHONPATH": str(ROOT), "SLURM_STACKS_PROJECT": str(ROOT), "TERM": "xterm"})
