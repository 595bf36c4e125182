"""Tests of a cloud's machine: its name, its report in the bucket, its key, and a whole boot."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from node.bootstrap import machine_steps, step_runner, steps
from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.report import BootReport, failure, file_sink
from node.bootstrap.systemd_services import SystemdServices
from node.bootstrap.vm import clouds, disks, machine
from node.elastic.drivers.ec2.names import tags_of
from node.system import http_client
from node.system.cloud_api import ServiceError
from tests.support import whole_boot
from tests.support.fake_imds import FakeImds, fake_imds
from tests.support.moto_server import moto_server
from tests.support.recorded import Recorder
from tests.support.recorded import machine as make

TAGS = "meta-data/tags/instance/"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with whole_boot.short_folder() as folder:
        yield folder


class Cloud:
    def __init__(self, url: str, imds: FakeImds) -> None:
        self.imds = imds
        access = {"endpoint_url": url, "aws_access_key_id": "a", "aws_secret_access_key": "b"}
        self.s3: Any = boto3.client("s3", "eu-west-1", **access)
        self.secrets: Any = boto3.client("secretsmanager", "eu-west-1", **access)
        place = {"LocationConstraint": "eu-west-1"}
        self.s3.create_bucket(Bucket="t-bucket", CreateBucketConfiguration=place)
        self.arn = self.secrets.create_secret(Name="t-munge")["ARN"]

    def report(self, host: str) -> dict[str, Any]:
        body = self.s3.get_object(Bucket="t-bucket", Key=f"boot/{host}.json")["Body"].read()
        return dict(json.loads(body))


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with moto_server() as url, fake_imds() as imds:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", imds.url)
        monkeypatch.setattr(http_client, "FIRST_PAUSE_SECONDS", 0.01)
        yield Cloud(url, imds)


# --- who it is -------------------------------------------------------------------------------------------


def test_a_node_finds_its_name_in_its_launch(cloud: Cloud, tmp_path: Path) -> None:
    context, _ = make(tmp_path, driver={"region": "eu-west-1"})
    cloud.imds.content[f"{TAGS}slurm-stacks:nodes"] = "compute-[0,3-5]"
    cloud.imds.content["meta-data/ami-launch-index"] = "2"
    host, sink, services = machine.begin(context.settings, None, "s3://t-bucket")
    assert (host, type(services)) == ("compute-4", SystemdServices)
    sink('{"state": "booting"}')
    assert cloud.report("compute-4") == {"state": "booting"}
    cloud.imds.content["meta-data/ami-launch-index"] = "4"
    with pytest.raises(SystemExit, match="has no element 4"):
        machine.begin(context.settings, None, "s3://t-bucket")


def test_a_node_finds_its_name_in_a_list_of_several_tags(cloud: Cloud, tmp_path: Path) -> None:
    nodes = [f"compute-{n}" for n in range(1000, 2000, 7)]
    for key, piece in tags_of(nodes).items():
        cloud.imds.content[f"{TAGS}{key}"] = piece
    for index in (0, 70, len(nodes) - 1):
        cloud.imds.content["meta-data/ami-launch-index"] = str(index)
        assert clouds.of(make(tmp_path, "compute", "compute-1")[0].settings).node() == nodes[index]
    assert f"{TAGS}slurm-stacks:nodes-2" in cloud.imds.asked


def test_the_head_is_told_its_name(cloud: Cloud, tmp_path: Path) -> None:
    context, _ = make(tmp_path, "controller", "controller")
    host, sink, _ = machine.begin(context.settings, "controller", "s3://t-bucket")
    sink("{}")
    assert (host, cloud.report("controller")) == ("controller", {})


@pytest.mark.usefixtures("cloud")
def test_a_node_without_tags_cannot_know_itself(tmp_path: Path) -> None:
    context, _ = make(tmp_path)
    with pytest.raises(SystemExit, match=r"no tag slurm-stacks:nodes, or .*InstanceMetadataTags"):
        clouds.of(context.settings).node()


def test_a_bucket_that_refuses_does_not_stop_a_boot(cloud: Cloud, tmp_path: Path) -> None:
    context, _ = make(tmp_path, "controller", "controller")
    cloud.s3.delete_bucket(Bucket="t-bucket")
    _, sink, _ = machine.begin(context.settings, "controller", "s3://t-bucket")
    with pytest.raises(ServiceError):
        sink("{}")
    report = BootReport("controller", "controller", [file_sink(tmp_path / "boot.json"), sink])
    report.begin("users", 30)
    report.finish("ready")
    assert json.loads((tmp_path / "boot.json").read_text())["facts"]["report"].startswith(
        "not published: s3://"
    )


def test_a_machine_without_a_cloud_is_told_its_name(tmp_path: Path) -> None:
    context, _ = make(tmp_path)
    with pytest.raises(SystemExit, match="--host"):
        machine.begin(context.settings, None, str(tmp_path))
    host, sink, _ = machine.begin(context.settings, "compute-0", str(tmp_path))
    sink("{}")
    assert (host, (tmp_path / "boot" / "compute-0.json").read_text()) == ("compute-0", "{}")


def test_slurms_programs_are_there_while_a_head_boots_again(tmp_path: Path) -> None:
    """slurmctld is running, and calls the programs in the folder of the new code."""
    context, _ = make(tmp_path, "controller", "controller")
    code = tmp_path / "root" / "opt/slurm-stacks/current"
    machine.update_programs(context.settings, context.settings_file, "controller")
    assert not (code / "bin").exists(), "a first boot has no slurmctld"
    (tmp_path / "root" / "var/lib/slurm-stacks/elastic/requests").mkdir(parents=True)
    machine.update_programs(context.settings, context.settings_file, "compute")
    assert not (code / "bin").exists()
    machine.update_programs(context.settings, context.settings_file, "controller")
    assert {"resume", "suspend", "prolog-slurmctld", "epilog-slurmctld"} <= {
        path.name for path in (code / "bin").iterdir()
    }


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return whole_boot.name_is_noted(monkeypatch, "ip-10-0-1-17")


# --- secrets ---------------------------------------------------------------------------------------------


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_boot.users_are_me(monkeypatch)


@pytest.mark.usefixtures("users")
def test_the_head_fills_the_secret_and_a_node_has_the_key_of_the_head(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = {"region": "eu-west-1", "secret": cloud.arn}
    head, _ = make(tmp_path / "head", "controller", "controller", driver=driver)
    node, _ = make(tmp_path / "node", driver=driver)
    whole_boot.keys_come_from(monkeypatch, tmp_path / "head/root/etc/munge/munge.key")
    assert machine_steps.secrets(head) == "made the munge key"
    assert machine_steps.secrets(node) == "took the cluster's munge key"
    made, taken = ((tmp_path / name / "root/etc/munge/munge.key").read_bytes() for name in ("head", "node"))
    assert made == taken == cloud.secrets.get_secret_value(SecretId="t-munge")["SecretBinary"]
    assert len(made) == 1024
    # The controller was replaced.
    (tmp_path / "head/root/etc/munge/munge.key").unlink()
    assert machine_steps.secrets(head) == "took the cluster's munge key"


# --- a whole boot ----------------------------------------------------------------------------------------


@pytest.fixture
def ubuntu(
    cloud: Cloud, tmp_path: Path, named: list[str], users: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Context, Recorder]]:
    """Machines whose commands are recorded and whose daemons are not waited for."""
    whole_boot.nothing_is_mounted(monkeypatch, tmp_path)
    monkeypatch.setattr(disks, "volume", lambda _context, mount: f"/dev{mount.path}")
    whole_boot.nothing_is_waited_for(monkeypatch)
    whole_boot.keys_come_from(monkeypatch, tmp_path / "controller/root/etc/munge/munge.key")

    def machine_of(role: str, host: str) -> tuple[Context, Recorder]:
        driver = {"region": "eu-west-1", "secret": cloud.arn}
        context, run = make(tmp_path / host, role, host, driver=driver)
        whole_boot.begun(context, tmp_path / host, "s3://t-bucket")
        return context, run

    return machine_of


def taken_by(role: str) -> list[str]:
    """Return the names of a role's steps on a cloud's machine. `test_boot_steps` has their order."""
    return [
        step.name
        for step in steps.STEPS
        if role in step.roles and (step.isolations is None or "vm" in step.isolations)
    ]


def test_all_steps_of_a_head_and_of_a_node(
    cloud: Cloud, ubuntu: Callable[..., tuple[Context, Recorder]], tmp_path: Path
) -> None:
    head, run = ubuntu("controller", "controller")
    before = signal.getsignal(signal.SIGALRM)
    assert step_runner.run_steps(head, whole_boot.steps(head)) is True
    report = cloud.report("controller")
    assert (report["state"], report["facts"]["slurm"]) == ("ready", "slurm-wlm 23.11.4")
    assert [step["name"] for step in report["steps"]] == taken_by("controller")
    assert {step["state"] for step in report["steps"]} == {"done", "skipped"}
    assert report["facts"]["waits"] == whole_boot.WAITS, "`up` says when nodes that are up fetch what is new"
    assert [call.split()[0] for call in run.calls].index("mkfs.ext4") < run.calls.index("exportfs -ra")
    root = tmp_path / "controller" / "root"
    conf = (root / "etc/slurm/slurm.conf").read_text()
    assert "SlurmctldHost=controller(10.0.0.5)" in conf
    assert "cloud_dns" not in conf
    assert str((root / "usr/local/bin/slurm-stacks").readlink()).endswith("current/bin/slurm-stacks")

    node, _ = ubuntu("compute", "compute-0")
    node.report.content["facts"]["slurm"] = "slurm-wlm 23.11.4"
    assert step_runner.run_steps(node, whole_boot.steps(node)) is True
    report = cloud.report("compute-0")
    assert report["state"] == "ready"
    assert [step["name"] for step in report["steps"]] == taken_by("compute")
    assert node.services.started[-1].argv == (  # type: ignore[attr-defined]
        "/usr/sbin/slurmd", "-D", "-N", "compute-0", "--conf-server", "10.0.0.5:6817",
    )  # fmt: skip
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_failed_boot_is_told_by_the_bucket(
    cloud: Cloud, ubuntu: Callable[..., tuple[Context, Recorder]], tmp_path: Path
) -> None:
    node, run = ubuntu("compute", "compute-0")
    key = tmp_path / "controller/root/etc/munge/munge.key"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"k" * 1024)

    def apt(*argv: str) -> str:
        if "slurmd" in argv:
            raise CommandError("apt-get: exit status 100\nE: Unable to locate package slurmd", 100)
        return ""

    run.answer("apt-get", apt)
    assert step_runner.run_steps(node, whole_boot.steps(node)) is False
    assert node.services.started == []  # type: ignore[attr-defined]
    report = cloud.report("compute-0")
    assert report["state"] == "failed"
    assert report["steps"][-1]["tail"] == ["E: Unable to locate package slurmd"]
    (tmp_path / "fetched.json").write_text(json.dumps(report))
    assert failure(tmp_path / "fetched.json") == (
        "step packages: apt-get: exit status 100: E: Unable to locate package slurmd"
    )
