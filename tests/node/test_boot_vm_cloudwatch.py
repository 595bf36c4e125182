"""Tests of logs in CloudWatch: which files are sent, and that a failure does not stop the boot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.bootstrap import step_runner
from node.bootstrap.context import SkipStep
from node.bootstrap.steps import STEPS
from node.bootstrap.vm import signed_files
from node.bootstrap.vm.clouds import cloudwatch
from node.bootstrap.vm.signed_files import Signer
from node.design.accelerators import Accelerator
from node.design.model import Partition
from node.design.storage import Mount
from node.system import http_client
from node.system.cloud_api import UnreachableError
from node.system.http_client import Answer
from tests.support.recorded import NFS, machine

SITE = {"region": "eu-west-1", "log_group": "/slurm-stacks/t"}


@pytest.mark.parametrize(("suite", "folder"), [("noble", "ubuntu"), ("trixie", "debian")])
def test_each_role_sends_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suite: str, folder: str
) -> None:
    asked: list[tuple[str, str, Signer]] = []

    def fetch(
        _context: object, url: str, signature: str, by: Signer, target: Path, **_options: object
    ) -> None:
        asked.append((url, signature, by))
        target.write_bytes(b"deb")

    monkeypatch.setattr(signed_files, "fetch_signed", fetch)
    context, run = machine(tmp_path, "controller", "controller", driver=SITE, suite=suite)
    agent = tmp_path / "root" / cloudwatch.AGENT

    def dpkg(*argv: str) -> str:
        assert Path(argv[-1]).read_bytes() == b"deb"
        agent.parent.mkdir(parents=True)
        agent.touch()
        return ""

    run.answer("dpkg", dpkg)
    run.answer("dpkg-query", lambda *_: "installed rsyslog\n" if suite == "noble" else "")
    for _ in range(2):
        assert cloudwatch.ship(context) == "sent to /slurm-stacks/t, with metrics in slurm-stacks/t"
    url = (
        f"https://amazoncloudwatch-agent-eu-west-1.s3.eu-west-1.amazonaws.com/{folder}/amd64/latest/"
        "amazon-cloudwatch-agent.deb"
    )
    assert asked == [(url, f"{url}.sig", cloudwatch.SIGNER)]
    assert [line.split()[0] for line in run.calls if "apt" not in line and "query" not in line] == [
        "dpkg", str(agent), str(agent),
    ]  # fmt: skip
    assert [line.split()[-1] for line in run.having("apt-get", "install")] == (
        [] if suite == "noble" else ["rsyslog"]
    ), "Debian's images have nothing that writes /var/log/syslog"
    known = json.loads((tmp_path / "root" / cloudwatch.CONFIG).read_text())
    streams = [one["log_stream_name"] for one in known["logs"]["logs_collected"]["files"]["collect_list"]]
    assert streams == [
        "controller/slurmctld.log", "controller/elastic.log", "controller/slurmdbd.log", "controller/syslog",
        "controller/cloud-init-output.log",
    ]  # fmt: skip
    # The machine's role may write to log streams and its cluster's namespace, but make no log groups.
    assert known["metrics"]["namespace"] == "slurm-stacks/t"
    assert "retention" not in json.dumps(known)
    node, _ = machine(tmp_path, driver=SITE)
    assert "slurmd.log" in json.dumps(cloudwatch.wanted(node, "g", "eu-west-1"))


def measured(folder: Path, *given: str, **options: Any) -> dict[str, Any]:
    context, _ = machine(folder, *given, driver=SITE, **options)
    text = json.dumps(cloudwatch.wanted(context, "g", "eu-west-1"))
    found: dict[str, Any] = json.loads(text)["metrics"]
    assert "${" not in text, "that needs ec2:DescribeTags, which the role has not"
    return found


def test_a_controller_measures_itself_and_the_disks_that_it_serves(tmp_path: Path) -> None:
    found = measured(tmp_path, "controller", "controller", mounts=(*NFS, Mount("/fsx", "fsx_lustre")))
    assert set(found) == {"namespace", "metrics_collected", "force_flush_interval"}
    plugins = found["metrics_collected"]
    assert set(plugins) == {"cpu", "mem", "disk"}
    assert plugins["disk"] == {
        "measurement": ["used_percent"],
        "resources": ["/", "/home", "/apps"],
        "drop_device": True,
        "metrics_collection_interval": 60,
    }
    assert plugins["cpu"]["totalcpu"] is True
    assert "resources" not in plugins["cpu"], "one metric a machine, and not one a CPU"


def test_a_node_measures_its_gpus_and_its_own_disks_only(tmp_path: Path) -> None:
    mounts = (*NFS, Mount("/local_scratch", "nvme", ("compute",)))
    for host, gpus in (("t4-3", True), ("compute-0", False)):
        plugins = measured(tmp_path, "compute", host, mounts=mounts)["metrics_collected"]
        assert ("nvidia_gpu" in plugins) is gpus
        assert plugins["disk"]["resources"] == ["/", "/local_scratch"]
    assert "nvidia_gpu" not in measured(tmp_path, "login", "login-0")["metrics_collected"]
    trainium = Partition(
        "trn", "trn1.32xlarge", 128, 500000, 0, 4, Accelerator("trainium", 16, gres="neuron")
    )
    neuron = measured(tmp_path, "compute", "trn-0", partitions=(trainium,))
    assert "nvidia_gpu" not in neuron["metrics_collected"]


def test_names_of_metrics_are_the_agents(tmp_path: Path) -> None:
    """The metrics are in the agent's documentation for Linux and for NVIDIA's GPUs."""
    known = {
        "cpu": {"usage_active", "usage_idle", "usage_iowait", "usage_system", "usage_user"},
        "mem": {"used_percent", "available_percent", "used", "available", "total"},
        "disk": {"used_percent", "free", "used", "total", "inodes_free"},
        "nvidia_gpu": {
            "utilization_gpu", "utilization_memory", "memory_used", "memory_total", "memory_free",
            "temperature_gpu", "power_draw", "fan_speed",
        },
    }  # fmt: skip
    for name, one in measured(tmp_path, "compute", "t4-0")["metrics_collected"].items():
        assert set(one["measurement"]) <= known[name]


@pytest.mark.parametrize(
    "answer", [Answer(403), UnreachableError("s3 did not answer (tried 2 times): no route")]
)
def test_no_boot_fails_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer | UnreachableError
) -> None:
    def fetch(*_arguments: object, **_options: object) -> Answer:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(http_client, "call", fetch)
    context, _ = machine(tmp_path, driver=SITE)
    (step,) = [step for step in STEPS if step.name == "logs"]
    assert step_runner.run_steps(context, [step]) is True
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["steps"][-1]["state"] == "skipped"
    assert report["steps"][-1]["note"].startswith("logs stay on this machine: ")
    assert report["facts"]["logs"].startswith("not in CloudWatch: ")


def test_a_site_without_a_group_has_none(tmp_path: Path) -> None:
    with pytest.raises(SkipStep, match="no log group"):
        cloudwatch.ship(machine(tmp_path)[0])
