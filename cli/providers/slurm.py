"""The commands of a provider whose clusters run Slurm: they ask the login machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cli.providers import login_machine
from cli.providers.interface import BillsJobs, HasLoginMachine, Runs

if TYPE_CHECKING:
    from cli.console.progress import Console
    from node.design.model import BenchmarkDesign
    from operations.access import StackUp


class SlurmCommands(HasLoginMachine, BillsJobs):
    """Slurm's half of a `Provider`. What a command does is imported when it is called."""

    def status(self, up: StackUp) -> dict[str, Any]:
        return login_machine.cluster_status(self, up)

    def show_status(self, up: StackUp, status: dict[str, Any]) -> None:
        login_machine.show_status(up, status)

    def bill(self, up: StackUp, by: str | None, since: float | None, until: float | None) -> dict[str, Any]:
        from cli.commands import cost

        return cost.ask(self, up, by, since, until)

    def logs(self, up: StackUp, what: str | None, *, lines: int, follow: bool) -> int:
        from cli.commands import logs

        return logs.show(self, up, what, lines=lines, follow=follow)

    def follow(
        self,
        up: StackUp,
        training: BenchmarkDesign | None,
        console: Console,
        *,
        outputs: Mapping[str, Any],
        quiet: bool,
    ) -> dict[str, Any] | None:
        from cli.commands import benchmark

        if training is None:
            return None
        return benchmark.result(self, up, training, console, outputs=outputs, quiet=quiet)

    def run(self, up: StackUp, console: Console, asked: Runs) -> None:
        from cli.commands.sweep.command import Sweep

        Sweep(self, up, console).run(asked)

    def cancel(self, up: StackUp, console: Console) -> None:
        from cli.commands.sweep.command import Sweep

        Sweep(self, up, console).cancel()
