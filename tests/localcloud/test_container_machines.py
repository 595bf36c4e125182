"""Container machines that really boot: cloud-init, a network, a shutdown by systemd, and no leftovers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud import boot_files, cgroups, nspawn
from localcloud.container_machine import Bind, Machine
from node.system.processes import descendants
from tests.support.checkout import until
from tests.support.containers import Lab, base_image, need_containers

USER_DATA = "#!/bin/sh\nhostname >/root/told\n"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    need_containers()
    with Lab(tmp_path / "lab") as made:
        yield made


@pytest.mark.parametrize(
    ("one_process", "datasources", "without"),
    [(False, ("NoCloud",), True), (True, ("NoCloud",), False), (False, ("Ec2",), False)],
)
def test_the_stage_that_looks_for_a_network_runs_where_something_needs_it(
    tmp_path: Path, one_process: bool, datasources: tuple[str, ...], without: bool
) -> None:
    """A cloud's network settings need it, and a cloud-init that waits for each stage's unit does, too."""
    layer = tmp_path / "layer"
    (layer / "lib/systemd/system").mkdir(parents=True)
    if one_process:
        (layer / boot_files.ONE_PROCESS).touch()
    (tmp_path / "machine").mkdir()
    machine = Machine("m", "debug-0", tmp_path / "machine", [layer], None, datasources=datasources)
    boot_files.write_boot_files(machine)
    unit = machine.folder / "seed/etc/systemd/system/cloud-init-local.service"
    # For systemd an empty file is a unit that must not run.
    assert (unit.exists() and unit.read_text() == "") == without


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_a_machines_folders_have_the_modes_of_its_image(tmp_path: Path, mask: int) -> None:
    """Services that are not root's must be able to enter the machine's root."""
    layer = tmp_path / "layer"
    for folder in ("etc/cloud/cloud.cfg.d", "etc/systemd/system", "var/lib/cloud"):
        (layer / folder).mkdir(parents=True)
    (layer / "var/lib/cloud").chmod(0o700)
    layer.chmod(0o755)
    (tmp_path / "machine").mkdir()
    machine = Machine("m", "debug-0", tmp_path / "machine", [layer], None, datasources=("NoCloud",))
    before = os.umask(mask)
    try:
        boot_files.write_boot_files(machine)
    finally:
        os.umask(before)
    seed = machine.folder / "seed"
    assert seed.stat().st_mode & 0o777 == 0o755
    assert (seed / "etc/systemd").stat().st_mode == (layer / "etc/systemd").stat().st_mode
    assert (seed / "var/lib/cloud").stat().st_mode & 0o777 == 0o700


def test_a_machine_boots_runs_its_user_data_and_powers_off(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "file").write_text("of this host\n")
    image = base_image()
    first = lab.start(
        "debug-0", "10.99.1.0", [image], user_data=USER_DATA,
        binds=[Bind(tmp_path / "shared", "/srv/shared", read_only=True)],
        files={"root/.ssh/authorized_keys": ("a key\n", 0o600)},
    )  # fmt: skip
    core = min(os.sched_getaffinity(0))
    second = lab.start("debug-1", "10.99.1.1", [image], user_data=USER_DATA, cores=[core])
    for machine in (first, second):
        machine.booted()
    assert first.says("cat", "/root/told") == "debug-0"
    assert second.says("cat", "/root/told") == "debug-1"
    # The process is the machine's systemd, with all that it has started.
    for service in ("1", "$(systemctl show --property MainPID --value systemd-journald)"):
        allowed = second.says("sh", "-c", f"grep Cpus_allowed_list /proc/{service}/status")
        assert allowed.split()[-1] == str(core)
    # All of it moves, with what it starts later.
    other = max(os.sched_getaffinity(0))
    nspawn.move(second.machine.id, second.launcher, [core], [other])
    pids = [second.launcher.pid, *descendants(second.launcher.pid)]
    assert len(pids) > 5
    assert {frozenset(os.sched_getaffinity(pid)) for pid in pids if Path(f"/proc/{pid}").exists()} == {
        frozenset({other})
    }
    second.run("systemd-run", "--unit=later", "sleep", "300")
    later = second.until("systemctl", "show", "--property", "MainPID", "--value", "later")
    allowed = second.says("grep", "Cpus_allowed_list", f"/proc/{later.strip()}/status")
    assert allowed.split()[-1] == str(other)
    state = first.says("systemctl", "is-system-running", "--wait")
    assert state == "running", first.says("systemctl", "--failed")
    assert first.says("cat", "/srv/shared/file") == "of this host"
    assert "Read-only" in first.says("touch", "/srv/shared/mine")
    assert first.says("stat", "-c", "%a", "/root", "/root/.ssh/authorized_keys") == "700\n600"
    assert "10.99.1.0/16" in first.says("ip", "-brief", "address", "show", boot_files.INTERFACE)
    assert first.run("ping", "-c1", "-W20", "10.99.1.1").status == 0
    assert first.says("cat", "/etc/machine-id") != second.says("cat", "/etc/machine-id")

    # After a second boot the disk is the same, and user data for first boots does not run.
    first.run("rm", "/root/told")
    before = nspawn.leader(first.launcher)
    first.run("systemctl", "reboot")
    until(lambda: nspawn.leader(first.launcher) not in (None, before), 120, "another boot")
    first.until("systemctl", "is-active", "multi-user.target")
    assert first.says("cat", "/root/.ssh/authorized_keys") == "a key"
    assert first.run("test", "-e", "/root/told").status == 1

    assert first.power_off()
    assert "Powering off" in first.machine.console.read_text()
    # The disk stays until it is cleared; the network interface does not.
    assert nspawn.link_of(first.machine.id) not in lab.inside("ip", "-brief", "link")
    assert nspawn.clear(first.machine.folder, first.machine.id) == []
    assert not first.machine.folder.exists()
    assert cgroups.of(nspawn.group(first.machine.id)) == []
    assert not (image / "root" / "told").exists(), "the image is as it was"


def test_a_machine_that_is_killed_frozen_or_cut_off(lab: Lab) -> None:
    image = base_image()
    machines = [lab.start(f"debug-{n}", f"10.99.1.{n}", [image]) for n in range(2)]
    for machine in machines:
        machine.until("systemctl", "is-active", "multi-user.target")
    asks, asked = machines

    def reached() -> bool:
        return asks.run("ping", "-c1", "-W1", "10.99.1.1").status == 0

    until(reached, 60, "an answer")
    nspawn.freeze(asked.machine.id)
    # The kernel still answers a ping; nothing that runs on the machine does.
    greets = ("timeout", "2", "bash", "-c", "read -r word </dev/tcp/10.99.1.1/22 && echo $word")
    assert asks.run(*greets).output == ""
    assert asked.launcher.alive()
    nspawn.thaw(asked.machine.id)
    assert asks.until(*greets).startswith("SSH-2.0")

    lab.network.cut(nspawn.link_of(asked.machine.id))
    assert not reached()
    lab.network.join(nspawn.link_of(asked.machine.id))
    until(reached, 60, "the network")

    pid = nspawn.leader(asked.launcher)
    asked.kill()
    assert not asked.launcher.alive()
    until(lambda: not Path(f"/proc/{pid}").exists(), 60, "the end of its first process")
    until(lambda: not reached(), 60, "no answer")


def test_a_disk_that_is_full_is_the_machines_own(lab: Lab) -> None:
    small = lab.start("debug-0", "10.99.1.0", [base_image()], disk_mib=48, user_data=USER_DATA)
    small.booted()
    done = small.run("dd", "if=/dev/zero", "of=/var/tmp/big", "bs=1M", "count=100")
    assert "No space left on device" in done.errors
    assert small.run("true").status == 0


def test_a_machine_whose_launcher_is_killed_is_off(lab: Lab) -> None:
    machine = lab.start("debug-0", "10.99.1.0", [base_image()])
    machine.until("systemctl", "is-active", "multi-user.target")
    pid = nspawn.leader(machine.launcher)
    os.kill(machine.launcher.pid, 9)
    until(lambda: not Path(f"/proc/{pid}").exists(), 60, "the end of its first process")
    cable = nspawn.link_of(machine.machine.id)
    until(lambda: cable not in lab.inside("ip", "-brief", "link"), 60, "its cable's end")
    assert [line for line in lab.left() if "process" not in line and "cgroup" not in line] == []
