"""A Slurm of two programs, whose partitions are files: it runs the shell lines that close and open them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from cli.changes.closing import Holder
from cli.changes.decision import ClusterControl
from infra.errors import UserError
from infra.program.stack import Stack

SCONTROL = """#!/bin/sh
# What scontrol does with partitions: each is a file with its state. `calls` has what it changed.
cd '{folder}'
case "$*" in
    ping) [ ! -e silent ] && echo "Slurmctld(primary) at head is UP" ;;
    "--all --oneliner show partition")
        for name in partition/*; do "$0" --all --oneliner show partition "${{name#*/}}"; done ;;
    # Without --all a hidden partition is shown to nobody but root.
    "--all --oneliner show partition "*) [ -e "partition/$5" ] || exit 1
        echo "PartitionName=$5 AllowGroups=ALL State=$(cat "partition/$5") TotalCPUs=1" ;;
    "update PartitionName="*)
        name=${{2#PartitionName=}}; echo "$name ${{3#State=}}" >>calls
        [ ! -e "stiff/$name" ] || exit 1
        echo "${{3#State=}}" >"partition/$name" ;;
    *) exit 9 ;;
esac
"""
SQUEUE = """#!/bin/sh
# What squeue prints of the jobs in the file, each on a line: what LISTING asks for, or ids, states and nodes.
mark=${{SQUEUE_FORMAT#%i}}; mark=${{mark%%f\\%*}}
case "$*" in
    *--format=*) awk -F'|' '{{ print $1 "|" $5 "|" $4 }}' '{folder}/jobs' ;;
    *) awk -F'|' -v m="$mark" '{{ for (n = 1; n <= 7; n++) printf "%s%sf", $n, m
        printf "1:00%sfN/A%sfN/A%sfusers%sfnormal%sr\\n", m, m, m, m, m }}' '{folder}/jobs' ;;
esac
"""


class SmallSlurm:
    """A cluster's Slurm with the partitions `cpu` and `gpu`, both up.

    Attributes:
        calls: How many lines may run before the caller is killed; `None` means no end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: int | None = None
        for name in ("partition", "stiff", "state", "elastic", "bin"):
            (folder / name).mkdir(parents=True)
        for name, text in (
            ("scontrol", SCONTROL),
            ("squeue", SQUEUE),
            ("scancel", "#!/bin/sh\necho end >>'{folder}/calls'; : >'{folder}/jobs'\n"),
        ):
            (folder / "bin" / name).write_text(text.format(folder=folder))
            (folder / "bin" / name).chmod(0o755)
        (folder / "jobs").write_text("")
        for name in ("cpu", "gpu"):
            self.set(name, "UP")

    def set(self, name: str, state: str) -> None:
        (self.folder / "partition" / name).write_text(f"{state}\n")

    @property
    def states(self) -> dict[str, str]:
        return {file.name: file.read_text().strip() for file in sorted((self.folder / "partition").iterdir())}

    @property
    def changes(self) -> list[str]:
        """What was changed, in order."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def mark(self) -> Path:
        return self.folder / "state" / ".closed-partitions"

    def jobs(self, *lines: str) -> None:
        """Set the jobs: id, user, partition, nodes, state, required nodes and name, with `|` between them."""
        (self.folder / "jobs").write_text("".join(f"{line}\n" for line in lines))

    def run(self, line: str, _seconds: float) -> str:
        """Run a line on the controller.

        Raises:
            UserError: The line failed.
            KilledError: The caller is killed here.
        """
        if self.calls is not None:
            if not self.calls:
                raise KilledError
            self.calls -= 1
        done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(done.stderr.strip() or "it failed", code="slurm.failed")
        return done.stdout

    def control(self, command: str = "up", holder: Holder | None = None) -> ClusterControl:
        """Return a command's control of the cluster."""
        holder = holder or Holder.of(Stack(self.folder, "test"), command)
        return ClusterControl(
            self.run, "/x", str(self.folder / "state"), str(self.folder / "elastic"), holder=holder
        )


class KilledError(BaseException):
    """Stands for SIGKILL: the command does nothing any more, not even what it does after an error."""


def killed(action: Callable[[], object]) -> bool:
    """Run a command, and return whether it was killed."""
    try:
        action()
    except KilledError:
        return True
    return False
