"""A cluster on a simulated cloud, as a stack makes it: its design, its bucket, its head."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, Protocol

from infra import bundle
from infra.design import MOUNT_OPTIONS
from localcloud import cgroups
from node.design.model import STATE, ClusterDesign, Hook, Host, Partition, Settings, Site, SlurmSettings
from node.design.storage import Mount
from tests.support.checkout import CODE, ROOT, until
from tests.support.cloud_land import ADDRESSES, CGROUPS, CONTROLLER, Land

PEOPLE = {"ada": 2001, "bob": 2002}
"""Ordinary users, with the same numbers on every machine."""
NODES = tuple(f"compute-{number}" for number in range(2))
HEAD = Host("controller", "controller", ("controller",), "m5.large", 50)
LOGIN = Host("login-0", "login", ("login",), "m5.large", 50)
UNUSED = f"compute-{len(NODES)}"
"""A node that no job of several nodes needs."""
COMPUTE = Partition("compute", "c4.2xlarge", 2, 1000, 0, len(NODES) + 1, default=True)
OPEN = Partition("open", "c4.2xlarge", 2, 1000, 0, 1, open_metadata=True)
"""A partition whose jobs may act as their node."""
TIMERS = SlurmSettings(
    suspend_time=600, suspend_timeout=30, resume_timeout=400, slurmd_timeout=20, reconcile_interval=2.0
)
PEOPLE_HOOK = """\
#!/bin/sh
set -e
if [ "$SLURM_STACKS_ROLE" = compute ] && [ -e /home/no-licence ]; then
    echo "no licence server" >&2
    exit 9
fi
echo "$SLURM_STACKS_ROLE $SLURM_STACKS_HOST $1" >/var/lib/hook
while read -r name number; do
    getent passwd "$name" >/dev/null || useradd --uid "$number" --no-create-home --shell /bin/bash "$name"
    [ "$SLURM_STACKS_ROLE" = controller ] || continue
    [ -d "/home/$name" ] || install -d -o "$number" -g "$number" -m 700 "/home/$name"
done <<END
{people}
END
"""


class Stack(Protocol):
    """A cloud, and what its stack makes in it.

    Attributes:
        refused: role and call of each request that a machine's identity may not make.
    """

    refused: list[tuple[str, str]]

    def site(self) -> dict[str, Any]: ...

    def template(self, partition: str) -> None: ...

    def make(self, host: Host) -> None: ...

    def end_all(self) -> None: ...

    def publish(self, objects: dict[str, bytes], /) -> None: ...

    def store(self, key: str, content: bytes) -> None:
        """Write an object of the bucket, as every machine's role may write boot reports."""
        ...


def design(provider: str, region: str, kind: str, *, kept: bool = False) -> ClusterDesign:
    """Return the design of the cluster.

    Args:
        kind: the kind of its shared directories.
        kept: whether Slurm's state is on a disk of its own.
    """
    options = "rw,hard,nfsvers=4.1,_netdev"
    shared = tuple(Mount(path, kind, options=options) for path in ("/home", "/apps"))
    mount = Mount(STATE, "disk", served_by="controller", options=MOUNT_OPTIONS["disk"], roles=("controller",))
    return ClusterDesign(
        "t", "test", provider, "vm", (HEAD, LOGIN), (COMPUTE, OPEN),
        (*shared, *([mount] if kept else [])),
        hooks=(Hook("all", "hooks/people.sh", ("x",)),), slurm=TIMERS, region=region, trains=False,
    )  # fmt: skip


def project(folder: Path) -> Path:
    """A checkout with the stack's hooks."""
    (folder / "hooks").mkdir(parents=True)
    for part in CODE:
        (folder / part).symlink_to(ROOT / part)
    (folder / "uv.lock").symlink_to(ROOT / "uv.lock")
    people = "\n".join(f"{name} {number}" for name, number in PEOPLE.items())
    (folder / "hooks" / "people.sh").write_text(PEOPLE_HOOK.format(people=people))
    return folder


class Cluster:
    """A cluster on a cloud, whose controller is up. `start_login` makes its login machine.

    Args:
        land: the simulated cloud, which must be open.
    """

    def __init__(self, land: Any, plan: ClusterDesign, folder: Path) -> None:
        self.land: Land = land
        self.stack: Stack = land
        self.design = plan
        for partition in plan.partitions:
            self.stack.template(partition.name)
        # On a host with cgroups of version 1, those of a container's jobs are apart from its systemd's.
        aside = CGROUPS if cgroups.old_controllers() else None
        site = Site(
            "/", "slurm", "controller", CONTROLLER,
            cgroups=aside, addresses=ADDRESSES, **self.stack.site(),
        )  # fmt: skip
        code = bundle.node_archive(plan, project(folder))
        settings = bundle.settings_object(Settings(plan, site))
        pointer = bundle.current(code, settings)
        self.stack.publish(
            {
                "loader.py": bundle.loader_archive(plan.provider),
                pointer["code"]["key"]: code,
                pointer["settings"]["key"]: settings,
                "current.json": json.dumps(pointer).encode(),
            }
        )
        self.stack.make(HEAD)
        self.head = land.ready("controller")

    def start_login(self) -> None:
        """Make the login machine, which no other test needs, and wait until it is up."""
        self.stack.make(LOGIN)
        self.land.ready(LOGIN.name)

    def sh(self, script: str, *, user: str | None = None, host: str = "controller") -> str:
        return self.land.shell(host, script, user=user)

    def submit(self, script: str, *options: str, user: str = "ada") -> str:
        """Submit a user's job, whose output is in the user's home. Returns its id."""
        line = shlex.join(["sbatch", "--parsable", f"--chdir=/home/{user}", *options, "--wrap", script])
        return self.sh(line, user=user)

    def job(self, number: str) -> dict[str, str]:
        shown = self.sh(f"scontrol --oneliner show job {number}")
        return dict(pair.split("=", 1) for pair in shown.split() if "=" in pair)

    def done(self, number: str, seconds: float = 420.0) -> dict[str, str]:
        """Wait until a job has ended well, and return its fields."""

        def over() -> dict[str, str] | None:
            job = self.job(number)
            return job if job["JobState"] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING") else None

        try:
            job: dict[str, str] = until(over, seconds, f"job {number}")
            assert job["JobState"] == "COMPLETED", job
        except AssertionError as error:
            error.add_note(self.sh("sinfo -N -o '%N %T %E'; squeue; tail -n 60 /var/log/slurm/*.log"))
            for node in NODES:
                error.add_note(f"{node}: {json.dumps(self.land.report(node)['steps'][-2:], indent=1)}")
                if node in self.land.hosts():
                    booted = self.land.machine(node)
                    look = "systemctl --failed; journalctl --no-pager -n 60; tail -n 30 /var/log/slurm/*"
                    error.add_note(f"{node}: {booted.says('sh', '-c', look)[-6000:]}")
            raise
        return job
