"""A local cluster in a program that is not ours, with the real engine and Slurm: the way in, and its end."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.engine.automation import command_plugin
from infra.program import locations
from infra.program.stack import Stack
from operations import guard
from operations.local import system_packages
from operations.local.cluster import cloud_down
from operations.local.run_directory import RunDirectory
from tests.support.checkout import ROOT
from tests.support.consumer_program import Consumer

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        bool(system_packages.missing()), reason=f"missing packages: {', '.join(system_packages.missing())}"
    ),
]
PROGRAM = """
import pulumi
from pulumi_slurm_stacks import SlurmCluster

partition = {"name": "debug", "instance_type": "local.small", "nodes": {"max": 1}}
cluster = SlurmCluster("train", provider="local", partitions=[partition])
pulumi.export("train", cluster.cluster)
pulumi.export("login", cluster.login_ssh)
"""


class Local(Consumer):
    """The program, with the plugin that runs commands."""

    def write_program(self, text: str | None = None) -> None:
        super().write_program(text or PROGRAM)

    def shell(self, line: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line], cwd=self.folder.parent, env={**self.env(), **more}, capture_output=True,
            text=True, check=False, timeout=300,
        )  # fmt: skip


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    if why := command_plugin(lambda _event: None):
        pytest.skip(f"pulumi has no command plugin and cannot get it: {why}")
    plugin = f"resource-command-v{importlib.metadata.version('pulumi-command')}"
    real = locations.pulumi_home() / "plugins" / plugin
    made = Local(tmp_path / "a program", tmp_path / "home", tmp_path / "state")
    made.write()
    program = Path(".pulumi", "plugins", plugin, "pulumi-resource-command")
    shutil.copy2(real / program.name, made.home / program)
    yield made
    stack = Stack(made.folder, "dev.train")
    if RunDirectory.of(stack).path.exists():
        cloud_down(stack)


def test_the_way_in_and_the_end(local: Local) -> None:
    local.generate()
    local.pulumi("stack", "init", "dev")
    local.pulumi("up", "--yes", "--skip-preview")
    known = json.loads(local.pulumi("stack", "output", "--json"))
    login = known["login"]
    run = Path(shlex.split(login)[-1]).parent
    assert run.name == known["train"]["login"]["access"]["machine"]
    assert local.shell(f"{login} sinfo -h -o %P").stdout == "debug*\n"

    cluster = shlex.quote(str(ROOT / "cluster"))
    status = local.shell(f"{cluster} status --json --outputs organization/consumer/dev:train")
    assert [partition["name"] for partition in json.loads(status.stdout)["partitions"]] == ["debug"], status
    piped = local.shell(f"cat {run}/outputs.json | {cluster} exec --outputs - -- squeue")
    assert "JOBID" in piped.stdout, piped

    sent = local.shell(f"{login} sbatch --parsable --job-name=precious '--wrap=\"sleep 600\"'")
    assert sent.stdout == "1\n", sent
    said = local.pulumi("destroy", "--yes", "--skip-preview", fails=True)
    assert "job 1 precious (" in said
    assert f"{guard.VARIABLE}=1" in said
    assert "precious" in local.shell(f"{login} squeue -h -o %j").stdout, "its cluster and the job go on"
    assert "unchanged" in local.pulumi("up", "--yes", "--skip-preview")

    line = "pulumi destroy --yes --skip-preview --non-interactive --cwd " + shlex.quote(str(local.folder))
    ended = local.shell(line, **{guard.VARIABLE: "1"})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not run.exists()
    gone = local.shell(f"{login} true")
    assert (gone.returncode, "[outputs.source]" in gone.stderr) == (2, True)
