"""The provider Google Cloud, and its report of leftovers, which knows everything that a stack makes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulumi
import pytest
from typer.testing import CliRunner

from cli import main as cli
from cli.providers import provider as providers
from cli.providers.gcp import changes
from cli.providers.gcp.provider import GcpProvider
from infra import bundle, ssh
from infra.clouds.commands import ClusterRef
from infra.clouds.shell import OpenSshShell
from infra.errors import EXIT_REFUSED, UserError
from infra.program import stand_ins
from infra.program.stack import Stack
from infra.providers import create_cluster
from node.design.model import ClusterDesign, Image, Settings, Site
from node.elastic.drivers.gce.names import CLUSTER
from operations.access import StackUp
from operations.clouds import termination
from operations.gcp import __main__, account
from operations.gcp.cloud import GcpCloud
from operations.gcp.leftovers import KINDS, _belongs_to
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.fake_google import Project, project
from tests.support.gcp_machines import Machines
from tests.support.gcp_mocks import FILESTORE, GPU, NFS, declare, gcp_design, gcp_ssh_design
from tests.support.operation_lines import words_anywhere
from tests.support.stack_values import filled_in

COUNTED = {
    "gcp:compute/instance:Instance": "instance",
    "gcp:compute/disk:Disk": "disk",
    "gcp:compute/address:Address": "address",
    "gcp:compute/image:Image": "image",
    "gcp:compute/instanceTemplate:InstanceTemplate": "instance template",
    "gcp:compute/resourcePolicy:ResourcePolicy": "resource policy",
    "gcp:compute/firewall:Firewall": "firewall rule",
    "gcp:compute/router:Router": "router",
    "gcp:compute/subnetwork:Subnetwork": "subnetwork",
    "gcp:compute/network:Network": "network",
    "gcp:storage/bucket:Bucket": "bucket",
    "gcp:secretmanager/secret:Secret": "secret",
    "gcp:filestore/instance:Instance": "Filestore instance",
}
OTHERWISE = {
    # These are deleted with what they belong to: router, bucket, subnetwork, project.
    "gcp:compute/routerNat:RouterNat", "gcp:storage/bucketObject:BucketObject",
    "gcp:storage/bucketIAMMember:BucketIAMMember", "gcp:projects/iAMMember:IAMMember",
    "gcp:secretmanager/secretIamMember:SecretIamMember", "gcp:serviceaccount/iAMMember:IAMMember",
    "gcp:compute/subnetworkIAMMember:SubnetworkIAMMember",
    # These cost nothing and do not block another cluster of the same name.
    "gcp:serviceaccount/account:Account", "gcp:projects/iAMCustomRole:IAMCustomRole",
}  # fmt: skip


@pytest.fixture
def gcp_project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    with project() as made:
        monkeypatch.setattr(account, "of", lambda _: made.account)
        yield made


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def test_the_provider_is_one_of_them() -> None:
    assert isinstance(providers.load("gcp"), GcpProvider)
    with sentences.raises("provider.unknown"):
        providers.load("azure")


def test_it_gives_what_the_shared_parts_ask_for() -> None:
    provider = GcpProvider()
    place = ClusterRef("c", "europe-west4", "europe-west4-a", "p-1")
    assert provider.cloud(place) == GcpCloud(place)
    assert provider.rules() is changes.RULES


def test_without_credentials_up_and_status_are_refused_in_one_message(nobody: None) -> None:
    for refused in (
        lambda: GcpProvider().check_host(gcp_design()),
        lambda: GcpProvider().status(StackUp(Stack(ROOT, "gcp-cpu"), "gcp")),
    ):
        with sentences.raises("gcp.no-credentials") as caught:
            refused()
        assert caught.value.exit_code == EXIT_REFUSED


@pytest.mark.parametrize("command", ["up", "status", "ssh", "exec -- hostname", "logs", "run"])
def test_every_command_that_needs_google_says_so_once(
    nobody: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    """The exit status is 3, there is one message, and neither Google nor a metadata server is called."""
    called: list[object] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _self, address: called.append(address))
    verb, *more = command.split()
    for name in ("Pulumi.yaml", "__main__.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "Pulumi.gcp-cpu.yaml").write_text(filled_in((ROOT / "Pulumi.gcp-cpu.yaml").read_text()))
    runner = CliRunner(env={"SLURM_STACKS_PROJECT": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")})
    done = runner.invoke(cli.app, [verb, "--stack", "gcp-cpu", *more])
    assert isinstance(done.exception, UserError), done.output
    assert done.exception.exit_code == EXIT_REFUSED
    assert "Google Cloud" in str(done.exception)
    assert called == []


@pytest.mark.parametrize("design", [gcp_design(), gcp_ssh_design()])
def test_the_benchmark_goes_by_ssh_as_whoever_runs_it(design: ClusterDesign) -> None:
    """The state has no user name, so another engineer's `up` is no change and logs in as that engineer."""
    found: list[Any] = []

    def program() -> None:
        found.append(create_cluster(design.name, design, stand_ins.NONE).shell)
        found[0].prepare("p", pulumi.ResourceOptions())

    made = declare(program, gcp=Machines())
    assert [type(shell) for shell in found] == [OpenSshShell]
    reached = ssh.parse(made.inputs("p")["environment"][ssh.VARIABLE])
    assert (reached.user, reached.proxy_command is None) == ("", design.access.mode == "ssh")
    module, *words = words_anywhere(str(reached.ask))
    assert module == __main__.__package__
    options = __main__.parse(words)
    assert (options.verb, options.project) == ("user", "acme-ml")


SMALLER = (dataclasses.replace(NFS[0], size_gib=40), NFS[1])


@pytest.mark.parametrize(
    ("changes", "replace", "code"),
    [
        ({"zone": "europe-west4-b"}, False, "change.deletes-files"),
        ({"mounts": SMALLER}, False, "change.impossible"),
        ({"mounts": SMALLER}, True, "change.impossible"),
        ({"zone": "europe-west4-b"}, True, None),
        ({}, False, None),
    ],
)
def test_up_refuses_another_zone_until_it_is_meant_and_smaller_disks_always(
    gcp_project: Project,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changes: dict[str, Any],
    replace: bool,
    code: str | None,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    up = gcp_design(project=gcp_project.account.project, trains=False)
    settings = bundle.settings_object(Settings(up, Site("/", "slurm", "controller", "10.0.0.4")))
    current = bundle.current(b"code", settings)
    gcp_project.bucket()
    gcp_project.head()
    gcp_project.put(current["settings"]["key"], settings)
    gcp_project.put("current.json", json.dumps(current).encode())
    said: list[str] = []
    new = dataclasses.replace(up, **changes)
    refused = sentences.raises(code or "", "/home")
    known = {"cluster": {"name": up.name, "region": up.region, "zone": up.zone, "project": up.project}}
    with refused if code else contextlib.nullcontext() as caught:
        GcpProvider().check_changes(Stack(tmp_path, "test"), new, lambda: known, said.append, replace=replace)
    assert caught is None or caught.value.exit_code == EXIT_REFUSED
    losses = (
        said.index("what is lost, and how to keep it:") if replace and not code and changes else len(said)
    )
    assert losses == len(changes), said
    assert [line.split(":")[0] for line in said[losses + 1 :]] == [
        "  /home (nfs, 50 GiB)", "  /apps (nfs, 60 GiB)",
    ] * (losses < len(said))  # fmt: skip


def test_it_finds_and_removes_what_is_left_of_the_cluster_that_the_stack_file_names(
    gcp_project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(termination, "TERMINATION_POLL_SECONDS", 0.05)
    gcp_project.account.project = "p-1"
    provider = GcpProvider()
    assert provider.leftovers(StackUp(Stack(ROOT, "gcp-cpu"), "gcp"), dict) == []
    gcp_project.node("debug-3", cluster="slurm10")
    gcp_project.head(cluster="slurm10")
    gcp_project.node("debug-0", cluster="another")
    assert provider.leftovers(StackUp(Stack(ROOT, "gcp-cpu"), "gcp"), dict) == [
        "instance slurm10-controller (RUNNING)",
        "instance slurm10-debug-3 (RUNNING)",
    ]
    provider.force_cleanup(StackUp(Stack(ROOT, "gcp-cpu"), "gcp"), dict)
    assert capsys.readouterr().err == "ending 1 machine of cluster slurm10\n"
    # The controller belongs to the engine; its removal without the engine would make the state wrong.
    assert provider.leftovers(StackUp(Stack(ROOT, "gcp-cpu"), "gcp"), dict) == [
        "instance slurm10-controller (RUNNING)"
    ]


def test_an_up_starts_a_head_that_was_stopped_and_no_node(gcp_project: Project) -> None:
    gcp_project.head(cluster="slurm10", status="TERMINATED")
    gcp_project.node("debug-0", cluster="slurm10", status="TERMINATED")
    said: list[str] = []
    GcpProvider().repair(StackUp(Stack(ROOT, "gcp-cpu"), "gcp"), said.append)
    assert said == ["controller was stopped: it is started again, with its queue"]
    states = {str(instance.name): str(instance.status) for instance in gcp_project.gce.cloud.instances()}
    assert states == {"slurm10-controller": "RUNNING", "slurm10-debug-0": "TERMINATED"}


def test_the_report_of_leftovers_finds_all_that_a_stack_makes() -> None:
    """The check uses the labels, names and descriptions that the components themselves set."""
    near = dataclasses.replace(
        GPU, name="near", instance_type="n2-standard-4", cpus=4, accelerator=None, placement="cluster"
    )
    design = gcp_ssh_design(
        partitions=(*gcp_design().partitions, near),
        mounts=(FILESTORE, NFS[1]),
        image=Image(source="ubuntu-24.04", bake=True),
    )
    made = declare(lambda: create_cluster(design.name, design, stand_ins.NONE), gcp=Machines())
    kinds = {kind.name: kind for kind in KINDS}
    seen: set[str] = set()
    for name, type_ in made.types().items():
        if not type_.startswith("gcp:") or type_ in OTHERWISE:
            continue
        kind, inputs = kinds[COUNTED[type_]], made.inputs(name)
        seen.add(kind.name)
        if kind.labelled:
            assert inputs["labels"][CLUSTER] == "c", name
            continue
        part = {
            "name": inputs.get("name") or f"{inputs['namePrefix']}1",
            "description": inputs["description"],
        }
        assert _belongs_to(part, "c"), name
        assert re.search(r"\bcluster c$", part["description"]), f"{name}: else it may be another cluster's"
    assert seen == set(kinds) - {"snapshot"}
