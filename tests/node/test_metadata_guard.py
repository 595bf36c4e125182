"""Tests of who may use a controller's metadata address, with real nftables rules in the test's network."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from node.bootstrap import steps
from node.bootstrap.context import Context
from node.bootstrap.vm import clouds, firewall, metadata_guard
from node.bootstrap.vm.metadata_guard import Openings
from tests.support.checkout import ROOT
from tests.support.recorded import gcp_machine, machine

SLURM, CONNECT, NOBODY = 64030, 64031, 65534

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nft") is None,
    reason="needs root and nftables for rules in a network of its own",
)


def world(tmp_path: Path, openings: Openings, users: tuple[int, ...]) -> dict[str, object]:
    """Returns what different users of a machine get from its metadata address with these rules."""
    file = tmp_path / "metadata.nft"
    file.write_text(metadata_guard.rules(users, openings))
    command = ["unshare", "--net", sys.executable, "-m", "tests.support.metadata_world", str(file)]
    asking = [str(user) for user in (0, SLURM, CONNECT, NOBODY)]
    done = subprocess.run(
        [*command, json.dumps(openings.paths), *asking],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def openings(context: Context) -> Openings:
    return clouds.of(context.settings).metadata_openings


def test_on_ec2_only_root_slurm_and_instance_connect_have_the_identity(tmp_path: Path) -> None:
    context, _ = machine(tmp_path, "controller", "controller")
    assert openings(context) == Openings(users=("ec2-instance-connect",)), "and nobody else's"
    seen = world(tmp_path, openings(context), (0, SLURM, CONNECT))
    token = seen["token"]
    assert isinstance(token, dict)
    assert [token[str(user)][0] for user in (0, SLURM, CONNECT)] == [200, 200, 200]
    assert token[str(NOBODY)] == ["ConnectionRefusedError", ""]
    assert seen["login"] == ["ConnectionRefusedError", ""]
    assert (seen["name of root"], seen["name"]) == ("sent", ["PermissionError", ""]), "nor anything but TCP"
    connected = dict.fromkeys(map(str, (0, SLURM, CONNECT)), "connected")
    assert seen["by IPv6"] == {**connected, str(NOBODY): ["ConnectionRefusedError", ""]}


def test_on_compute_engine_users_keep_names_and_os_login_and_get_no_identity(tmp_path: Path) -> None:
    context, _ = gcp_machine(tmp_path, "controller", "controller")
    assert openings(context).users == ()
    assert ("udp", 67) in openings(context).ports, "systemd-networkd renews the machine's address there"
    seen = world(tmp_path, openings(context), (0, SLURM))
    token = seen["token"]
    assert isinstance(token, dict)
    assert [token[str(user)][0] for user in (0, SLURM, NOBODY)] == [200, 200, 403]
    assert seen["login"] == [200, "Google /computeMetadata/v1/oslogin/users?username=ada"]
    assert [said[0] for said in (seen["round"], seen["hidden"])] == [403, 403]  # type: ignore[index]
    assert seen["name"] == "sent", "the metadata address is Google's name server"


def test_the_step_places_the_rules_for_this_boot_and_the_next(tmp_path: Path) -> None:
    context, run = machine(tmp_path, "controller", "controller")
    (step,) = [step for step in steps.STEPS if step.name == "metadata"]
    assert step.taken_by(context)
    assert not step.taken_by(machine(tmp_path)[0]), "a node's identity is harmless"
    assert "169.254.169.254" in step.run(context)
    file, name = (text.format(name=metadata_guard.NAME) for text in (firewall.RULES, firewall.UNIT))
    rules = tmp_path / "root" / file
    assert run.calls[-2:] == [f"nft -f {rules}", f"systemctl enable {name}"]
    assert run.having("apt-get", "install", "nftables"), "the packages of the boot come later"
    assert "skuid { 0" in rules.read_text()
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(tmp_path / "root" / "etc/systemd/system" / name)
    assert unit["Service"]["ExecStart"] == f"/usr/sbin/nft -f /{file}"
    # The rules are there before any program of a user's can reach the network.
    assert (unit["Unit"]["Before"], unit["Unit"]["DefaultDependencies"]) == ("network-pre.target", "no")
    assert unit["Install"]["WantedBy"] == "sysinit.target"
