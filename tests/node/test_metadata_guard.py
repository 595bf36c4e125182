"""Tests of who may use a machine's metadata address, with real nftables rules in the test's network."""

from __future__ import annotations

import configparser
import json
import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.bootstrap import steps
from node.bootstrap.context import Context
from node.bootstrap.vm import clouds, firewall, metadata_guard
from node.bootstrap.vm.metadata_guard import Openings
from tests.support.checkout import ROOT
from tests.support.doubles import HEAD
from tests.support.recorded import COMPUTE, V100, gcp_machine, machine

SLURM, CONNECT, NOBODY = 64030, 64031, 65534

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nft") is None,
    reason="needs root and nftables for rules in a network of its own",
)


def run_world(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "tests.support.metadata_world", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def world(context: Context) -> dict[str, Any]:
    """Returns what different users of a machine get from its metadata address with its rules."""
    paths = json.dumps(openings(context).paths)
    return run_world(placed(context), paths, *(str(user) for user in (0, SLURM, CONNECT, NOBODY)))


def placed(context: Context) -> str:
    """Takes the step with a list of users as an image has them. Returns the path of the rules."""
    known = {"root": 0, "slurm": SLURM, "ec2-instance-connect": CONNECT}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pwd, "getpwnam", lambda name: SimpleNamespace(pw_uid=known[name]))
        steps.metadata(context)
    return str(context.at(firewall.RULES.format(name=metadata_guard.NAME)))


def openings(context: Context) -> Openings:
    return clouds.of(context.settings).metadata_openings


def test_on_ec2_only_root_and_the_system_have_the_identity(tmp_path: Path) -> None:
    """On a controller Slurm's user has it, too: the elastic daemon's."""
    for role, host, may in (
        ("controller", "controller", (0, SLURM, CONNECT)),
        ("compute", "compute-0", (0, CONNECT)),
        ("login", "login-0", (0, CONNECT)),
    ):
        context, _ = machine(tmp_path / role, role, host)
        assert openings(context) == Openings(users=("ec2-instance-connect",)), "and nobody else's"
        seen = world(context)
        refused = ["ConnectionRefusedError", ""]
        users = (0, SLURM, CONNECT, NOBODY)
        assert {user: seen["token"][str(user)][0] for user in users} == {
            user: 200 if user in may else refused[0] for user in users
        }, role
        assert seen["login"] == refused
        assert (seen["name of root"], seen["name"]) == ("sent", ["PermissionError", ""]), (
            "nor anything but TCP"
        )
        by_v6 = {str(user): "connected" if user in may else refused for user in users}
        assert seen["by IPv6"] == {"fd00:ec2::254": by_v6, "fd20:ce::254": by_v6}


def test_on_compute_engine_users_keep_names_and_os_login_and_get_no_identity(tmp_path: Path) -> None:
    for role, host, slurm in (("controller", "controller", 200), ("compute", "compute-0", 403)):
        context, _ = gcp_machine(tmp_path / role, role, host)
        assert openings(context).users == ()
        assert ("udp", 67) in openings(context).ports, "systemd-networkd renews the machine's address there"
        seen = world(context)
        assert [seen["token"][str(user)][0] for user in (0, SLURM, NOBODY)] == [200, slurm, 403]
        assert seen["login"] == [200, "Google /computeMetadata/v1/oslogin/users?username=ada"]
        assert [said[0] for said in (seen["round"], seen["hidden"])] == [403, 403]
        assert seen["name"] == "sent", "the metadata address is Google's name server"


def test_a_container_with_a_network_of_its_own_gets_no_identity_either(tmp_path: Path) -> None:
    """Its requests are forwarded, and nothing tells whose they are: Docker's containers are root's."""
    refused = ["ConnectionRefusedError", ""]
    everything = {"token": 200, "name": "answered", "fd00:ec2::254": "connected", "fd20:ce::254": "connected"}
    nothing = dict.fromkeys(everything, refused)
    for made, role, host, may in (
        (machine, "compute", "compute-0", {}),
        (gcp_machine, "controller", "controller", {"name": "answered"}),
    ):
        context, _ = made(tmp_path / role, role, host)
        seen = run_world("containers", placed(context))
        seen["without the rules"]["token"] = seen["without the rules"]["token"][0]
        assert seen["without the rules"] == everything, "it is the rules, and nothing else"
        assert seen["with them"] == {**nothing, **may}, role


def test_the_key_opens_the_address_of_its_partition_and_of_login_machines_and_no_other(
    tmp_path: Path,
) -> None:
    login = replace(HEAD, name="login-0", role="login", open_metadata=True)
    shut = replace(HEAD, name="login-1", role="login")
    partitions = (replace(COMPUTE, open_metadata=True), V100)
    for role, host, is_open in (
        ("compute", "compute-0", True),
        ("compute", f"{V100.name}-0", False),
        ("compute", "strange-0", False),
        ("login", "login-0", True),
        ("login", "login-1", False),
        ("controller", "controller", False),
    ):
        context, run = machine(tmp_path / host, role, host, partitions=partitions)
        # Even a design that says it of the controller does not open that.
        hosts = (replace(HEAD, open_metadata=True), login, shut)
        context.settings = replace(context.settings, design=replace(context.settings.design, hosts=hosts))
        note = steps.metadata(context)
        assert ("open_metadata" in note, bool(run.having("nft"))) == (is_open, not is_open), host


def test_an_address_that_was_closed_is_opened_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, run = gcp_machine(tmp_path, "login", "login-0")
    rules = Path(placed(context))
    unit = context.at("etc/systemd/system/slurm-stacks-metadata.service")
    assert rules.exists()
    assert unit.exists()
    before, loaded, stopped = len(run.calls), list[str](), list[str]()

    def load(*line: str) -> str:
        loaded.append(Path(line[2]).read_text())
        return ""

    run.answer("nft -f", load)
    monkeypatch.setattr(context.services, "stop", stopped.append)
    metadata_guard.open_to_all(context)
    assert run.calls[before:] == ["systemctl disable slurm-stacks-metadata.service", f"nft -f {rules}"]
    assert loaded == ["table inet slurm_stacks_metadata\ndelete table inet slurm_stacks_metadata\n"]
    assert (rules.exists(), unit.exists()) == (False, False), "the next boot loads nothing"
    assert stopped == [metadata_guard.PROXY]
    metadata_guard.open_to_all(context)
    assert len(run.calls) == before + 2, "nothing is left to undo"


def test_the_step_places_the_rules_for_this_boot_and_the_next(tmp_path: Path) -> None:
    context, run = machine(tmp_path, "controller", "controller")
    (step,) = [step for step in steps.STEPS if step.name == "metadata"]
    assert step.taken_by(context)
    for role, host in (("compute", "compute-0"), ("login", "login-0")):
        assert step.taken_by(machine(tmp_path / role, role, host)[0]), role
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
