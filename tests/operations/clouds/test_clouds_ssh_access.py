"""SSH access on any cloud: the login machine, its host keys, the command, and what a program is told."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from infra.clouds import shell
from infra.clouds.cluster import parse_boot_facts
from infra.errors import NotUpError
from infra.program.stack import Stack
from node.design.model import Access, ClusterDesign
from operations import programs
from operations.access import StackUp
from operations.clouds import ssh_access
from tests.support import sentences
from tests.support.doubles import design
from tests.support.fake_cloud import KEY, FakeCloud, FakeProvider

PUBLIC = design(name="c", region="region-1", access=Access("ssh"))
BEHIND = design(name="c", region="region-1", access=Access("iap"))


@pytest.fixture
def cloud() -> FakeCloud:
    fake_cloud = FakeCloud()
    fake_cloud.run("controller", public="198.51.100.7")
    fake_cloud.report("controller", "ready")
    return fake_cloud


def find(cloud: FakeCloud, wanted: ClusterDesign = PUBLIC, project: Path = Path("/x")) -> ssh_access.Login:
    return ssh_access.find(Stack(project, "test"), wanted, cloud)


def test_a_public_machine_is_reached_by_its_address_as_the_clouds_user(cloud: FakeCloud) -> None:
    target = find(cloud).target
    assert (target.host, target.user, target.host_keys) == ("198.51.100.7", "ann", (KEY,))
    assert target.proxy_command is None


def test_one_behind_a_proxy_is_reached_from_any_folder(cloud: FakeCloud) -> None:
    target = find(cloud, BEHIND, Path("/a 100% path")).target
    assert target.host == "id-controller"
    assert target.proxy_command == (
        "'/a 100%% path/.venv/bin/python' -I '/a 100%% path/operations' tunnel %h %p"
    )


def test_what_is_not_up_is_told_from_what_is_half_up_and_from_what_was_stopped(cloud: FakeCloud) -> None:
    with sentences.raises("cluster.not-up", kind=NotUpError):
        find(FakeCloud())
    cloud.report("controller", "booting", host_keys=[])
    with sentences.raises("ssh.booting", kind=NotUpError):
        find(cloud)
    cloud.set_state("controller", "stopped")
    with sentences.raises("ssh.machine-stopped", "`./cluster up --stack test`") as caught:
        find(cloud)
    assert not isinstance(caught.value, NotUpError)


def test_a_report_that_is_half_written_is_none(cloud: FakeCloud) -> None:
    cloud.write("boot/controller.json", b'{"host": ')
    assert ssh_access.boot_report(cloud, "bucket-1", "controller") is None


def test_the_command_pins_the_published_keys_and_quotes_what_it_runs(
    cloud: FakeCloud, tmp_path: Path
) -> None:
    words = ssh_access.command(find(cloud).target, tmp_path, ["echo", "a b", "$HOME"], tty=True)
    assert (words[0], words[-2:]) == ("ssh", ["198.51.100.7", "echo 'a b' '$HOME'"])
    assert words.index("-t") < words.index("--")
    (known,) = [word.split("=", 1)[1].strip('"') for word in words if "-oUserKnownHostsFile" in word]
    assert Path(known).read_text() == f"slurm-stacks {KEY}\n"


def test_an_up_starts_a_head_that_was_stopped_and_no_node(tmp_path: Path) -> None:
    file = "config:\n  aws:region: eu-west-1\n  slurm-stacks:cluster:\n    name: c\n    provider: aws\n"
    file += "    partitions: [{name: cpu, instance_type: m5.large, nodes: {max: 2}}]\n"
    (tmp_path / "Pulumi.test.yaml").write_text(file)
    said: list[str] = []
    provider = FakeProvider()
    provider.repair(StackUp(Stack(tmp_path, "test"), "aws"), said.append)
    (cloud,) = provider.clouds.values()
    cloud.run("controller", state="stopped")
    cloud.run("cpu-0", "compute", "stopped")
    provider.repair(StackUp(Stack(tmp_path, "test"), "aws"), said.append)
    assert cloud.did == ["start controller"]
    assert said == ["controller was stopped: it is started again, with its queue"]


def test_the_commands_know_where_things_lie_as_the_program_does() -> None:
    known = FakeProvider().layout(PUBLIC)
    assert (known.apps, known.shared) == ("/apps", "/home")
    assert known.environment == shell.shell_paths(PUBLIC).environment


def test_a_plan_has_a_placeholder_for_each_fact() -> None:
    facts = parse_boot_facts("<c-ready.stdout>")
    assert set(facts) == {"host_keys", "login_user", "scheduler_version"}
    assert facts["host_keys"] == ["<c-ready.stdout.host_keys[0]>"]
    assert parse_boot_facts('{"login_user": "ann"}') == {"login_user": "ann"}
    with pytest.raises(ValueError, match="Expecting value"):
        parse_boot_facts("Traceback")


CONTROLLER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC"


def test_the_controller_is_reached_as_root_and_by_way_of_a_login_machine(
    cloud: FakeCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    stack, argv = Stack(tmp_path, "test"), ["slurm-stacks", "restore", "--bucket=a b"]
    words = ssh_access.controller_command(stack, cloud, find(cloud), tmp_path, argv)
    assert words[-2:] == ["198.51.100.7", "sudo -n slurm-stacks restore '--bucket=a b'"]

    host = dataclasses.replace(PUBLIC.hosts[0], name="login-0", role="login")
    wanted = dataclasses.replace(PUBLIC, hosts=(*PUBLIC.hosts, host))
    cloud.run("login-0", "login", public="198.51.100.8")
    cloud.report("login-0", "ready")
    cloud.report("controller", "ready", host_keys=[CONTROLLER_KEY])
    words = ssh_access.controller_command(stack, cloud, find(cloud, wanted), tmp_path, argv)
    assert words[-2] == "198.51.100.8"
    inner = shlex.split(words[-1])
    assert (inner[0], inner[-2:]) == ("ssh", ["controller", "sudo -n slurm-stacks restore '--bucket=a b'"])
    options = dict(word.removeprefix("-o").split("=", 1) for word in inner if word.startswith("-o"))
    assert options["StrictHostKeyChecking"] == "yes"
    # OpenSSH itself takes these options, and its command prints the published key and no other.
    known = shlex.split(options["KnownHostsCommand"])
    printed = programs.capture([word.replace("%%", "%") for word in known]).out
    assert printed == f"controller {CONTROLLER_KEY}\n"
    output = programs.capture([inner[0], "-G", *inner[1:]])
    assert not output.failed, output.err

    cloud.report("controller", "booting", host_keys=[])
    with sentences.raises("ssh.booting", kind=NotUpError):
        ssh_access.controller_command(stack, cloud, find(cloud, wanted), tmp_path, argv)
