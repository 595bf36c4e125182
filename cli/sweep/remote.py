"""The calls that a sweep makes to its cluster, each for many runs at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cli import login_machine
from infra.errors import UserError
from node import foreign

if TYPE_CHECKING:
    from cli.sweep.plan import Plan, PlannedRun
    from operations.access import StackUp


class Remote:
    """Calls the cluster's own `sweep` command (`node.benchmark`).

    Every method raises `NotUpError` if there is no cluster, and `UserError` if it does not answer.
    """

    def __init__(self, up: StackUp) -> None:
        self._up = up

    def submit(
        self, plan: Plan, runs: Sequence[PlannedRun], after: int | None
    ) -> tuple[list[str], list[dict[str, Any]]]:
        """Submit the runs that are not submitted yet. Each depends on the one before it.

        Args:
            plan: The plan with the scripts.
            runs: The runs to submit.
            after: The job that the first run waits for. `None` means every benchmark under way.

        Returns:
            The paths that are missing on the cluster (if there are any, nothing is submitted), and each run's
            `job` or `error`.
        """
        asked = [{"folder": run.folder, "script": plan.scripts[run.case.key]} for run in runs]
        answer = self._ask("submit", {"needs": plan.needs, "after": after, "runs": asked})
        return answer["missing"], answer["runs"]

    def show(self, runs: Sequence[PlannedRun]) -> list[dict[str, Any]]:
        """Return what the cluster knows of each run (`node.benchmark.Run.show`)."""
        return list(self._ask("show", [run.folder for run in runs])) if runs else []

    def cancel(self, runs: Sequence[PlannedRun]) -> list[int]:
        """End the jobs of these runs that are not over, and return their ids."""
        return list(self._ask("cancel", [run.folder for run in runs])) if runs else []

    def _ask(self, action: str, question: Any) -> Any:
        text = login_machine.tool(self._up, "sweep", action, text=json.dumps(question))
        try:
            return foreign.parse(text)
        except ValueError:
            raise UserError(f"the cluster's answer is not JSON: {text[:200]!r}") from None
