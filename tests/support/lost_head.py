"""The controller of a cluster of container machines, which a test loses, or cuts off from all it needs."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import secrets
import shutil
import subprocess
from typing import Any

from localcloud import boot_files, nspawn, volumes
from localcloud.containers import BootPlan, ContainerRuntime, disk_folder, state_image
from localcloud.machines import CONTROLLER, Boot
from node.system.processes import ProcessId
from node.system.rpc import RpcUnavailableError
from operations.local.run_directory import RunDirectory
from tests.support.checkout import until
from tests.support.mishaps import end
from tests.support.private_mounts import EXT4_SHUTDOWN, WITHOUT_LOG

IMAGE = "another-image"
"""The layer with which a successor's image differs, and the name of the file in its /etc."""
DAEMONS = ("slurmctld", "slurmdbd", "mariadbd")
"""What writes to the disk with Slurm's state."""


def controllers(run: RunDirectory) -> list[dict[str, Any]]:
    """Return the local cloud's records of the controllers that run, the first that was launched first.

    Raises:
        RpcUnavailableError: The agent does not answer.
    """
    machines = run.call("inspect")["machines"]
    found = [one for one in machines if one["tags"]["role"] == CONTROLLER and one["state"] == "running"]
    return sorted(found, key=lambda one: float(one["launched"]))


def controller(run: RunDirectory) -> dict[str, Any]:
    """Return the local cloud's record of the controller, of which there is one."""
    (record,) = controllers(run)
    return record


def daemons(record: dict[str, Any]) -> list[str]:
    """Return which of `DAEMONS` run on a controller."""
    return [name for name in DAEMONS if execute(record, "pgrep", "--exact", name)]


def execute(record: dict[str, Any], *command: str) -> bool:
    """Run a command on a controller, and return whether it succeeded."""
    return nspawn.execute(ProcessId(**record["process"]), *command).status == 0


def lose(run: RunDirectory) -> None:
    """End the controller at once, and delete its root disk. Its successor has another image.

    Raises:
        RpcUnavailableError: The agent does not answer, and nothing was done.
    """
    end(controller(run)["process"]["pid"])
    until(lambda: volumes.attached(state_image(run.path)) == [], 60, "the disk, which nobody has")
    folder = disk_folder(run.path, CONTROLLER)
    for part in folder.iterdir():
        if part.name != "log":
            shutil.rmtree(part)
    _other_image(run)


def _other_image(run: RunDirectory) -> None:
    plan = BootPlan.read(run.path)
    of_image = tuple(layer for layer in plan.layers if f"/{IMAGE}-" not in layer)
    layer = run.cloud / f"{IMAGE}-{len(list(run.cloud.glob(f'{IMAGE}-*')))}"
    (layer / "etc").mkdir(parents=True)
    (layer / "etc" / IMAGE).write_text(layer.name)
    dataclasses.replace(plan, layers=(str(layer), *of_image)).write(run.path)


def take_the_disk_away(record: dict[str, Any]) -> None:
    """Let a controller's disk answer no more. What was not written through to it is lost."""
    handle = os.open(f"/proc/{nspawn.leader(ProcessId(**record['process']))}/root/state", os.O_RDONLY)
    try:
        fcntl.ioctl(handle, EXT4_SHUTDOWN, WITHOUT_LOG)
    finally:
        os.close(handle)


def launch_beside(run: RunDirectory, old: dict[str, Any]) -> str:
    """Launch another controller while the old one lives, and return its id."""
    answer = run.call(
        "launch",
        120.0,
        token=secrets.token_hex(8),
        names={CONTROLLER: f"{old['name']}-{secrets.token_hex(4)}"},
        min_count=1,
        machine=old["machine"],
        tags={name: value for name, value in old["tags"].items() if name != "node"},
    )
    (made,) = answer["machines"]
    return str(made["id"])


def detach_by_force(run: RunDirectory, old: dict[str, Any]) -> None:
    """Take disk and address from a controller that lives, as a cloud can (`detach-volume --force`).

    What the old machine would still write goes nowhere. It keeps its root disk, and its successor gets a new
    one.
    """
    take_the_disk_away(old)
    run.call("fault", 20.0, action="cut", node=CONTROLLER)
    image, folder = state_image(run.path), disk_folder(run.path, CONTROLLER)
    former = image.with_name(f"former-{old['id']}.img")
    image.rename(former)
    subprocess.run(["cp", "--sparse=always", str(former), str(image)], check=True)
    folder.rename(folder.with_name(f"former-{old['id']}"))
    run.boot_report(CONTROLLER).unlink(missing_ok=True)
    _other_image(run)


def come_back(run: RunDirectory, old: dict[str, Any]) -> None:
    """Let a machine that was frozen or cut off go on, behind its successor, which has its address."""
    runtime, process = ContainerRuntime(run.path), ProcessId(**old["process"])
    boot = Boot(old["id"], CONTROLLER, CONTROLLER, registers=True)
    runtime.thaw(boot, process)
    units = ("systemd-networkd.socket", "systemd-networkd.service")
    assert execute(old, "systemctl", "mask", "--runtime", "--now", *units)
    assert execute(old, "ip", "address", "flush", "dev", boot_files.INTERFACE)
    runtime.join(boot, process)


def end_former(run: RunDirectory, old: dict[str, Any]) -> None:
    """End a controller that has a successor, and free the disk that it was left with."""
    end(old["process"]["pid"])
    former = state_image(run.path).with_name(f"former-{old['id']}.img")
    assert volumes.detach(former) == []
    former.unlink()

    def one_is_left() -> bool:
        # While the agent clears up after a machine, it may answer late.
        with contextlib.suppress(RpcUnavailableError):
            return len(controllers(run)) == 1
        return False

    until(one_is_left, 120, "the end of the former controller")
