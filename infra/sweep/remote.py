"""What a sweep asks of its cluster: one call for many runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra import access
from infra.errors import UserError

if TYPE_CHECKING:
    from infra.config import StackConfig
    from infra.sweep.plan import Plan, PlannedRun


class Remote:
    """The cluster's own `sweep` command (`infra.node.sweep`).

    Every method raises `NotUpError` where there is no cluster, and `UserError` where it does not answer.
    """

    def __init__(self, project: Path, config: StackConfig) -> None:
        self._project = project
        self._config = config

    def submit(
        self, plan: Plan, runs: Sequence[PlannedRun], after: int | None
    ) -> tuple[list[str], list[dict[str, Any]]]:
        """Submit runs that have not been submitted, one behind the other.

        Args:
            after: the job behind which the first goes; None: behind every benchmark under way.

        Returns:
            Paths that are missing on the cluster (then nothing is submitted); each run's `job` or `error`.
        """
        asked = [{"folder": run.folder, "script": plan.scripts[str(run.nodes)]} for run in runs]
        answer = self._ask("submit", {"needs": plan.needs, "after": after, "runs": asked})
        return answer["missing"], answer["runs"]

    def show(self, runs: Sequence[PlannedRun]) -> list[dict[str, Any]]:
        """What is known of each run (`infra.node.benchmark.Run.show`)."""
        return list(self._ask("show", [run.folder for run in runs])) if runs else []

    def cancel(self, runs: Sequence[PlannedRun]) -> list[int]:
        """End those jobs of the runs that are not over. Returns their ids."""
        return list(self._ask("cancel", [run.folder for run in runs])) if runs else []

    def _ask(self, action: str, question: Any) -> Any:
        try:
            text = access.tool(self._project, self._config, "sweep", action, text=json.dumps(question))
        except UserError as error:
            if "invalid choice: 'sweep'" not in str(error):
                raise
            stack = self._config.stack
            raise UserError(
                f"the cluster of stack {stack} runs an older release, which knows no sweeps. "
                f"Bring it up to date with `./cluster up --stack {stack}`; jobs go on."
            ) from None
        try:
            return json.loads(text)
        except ValueError:
            raise UserError(f"the cluster's answer is no answer: {text[:200]!r}") from None
