"""The resources of the benchmark over SSH: exactly these, without secrets and anything of this machine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulumi
import pulumi_command as command
import pytest

from cli.engine import wire
from cli.engine.plan import plan
from infra import ssh
from infra.benchmark import BenchmarkRun
from infra.clouds.shell import Endpoint, OpenSshShell, ShellPaths
from infra.program.stack import Stack
from infra.slurm_cluster import Benchmark
from operations import ssh as operations_ssh
from tests.support.checkout import ROOT
from tests.support.recorder import Recorder, declare

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
LOCAL = "command:local:Command"
PATHS = ShellPaths("/apps", "/home", "0123456789abcdef")
RUN = BenchmarkRun("#!/bin/bash\n", "d" * 64)


@pytest.fixture(autouse=True)
def this_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/of-this-login/agent.1")


def shell(head: command.local.Command, **options: Any) -> OpenSshShell:
    keys = head.stdout.apply(lambda text: [text])
    return OpenSshShell(Endpoint(head.id, "ubuntu", keys), PATHS, **options)


def registered(*, preview: bool = False, seen: list[Any] | None = None, **options: Any) -> Recorder:
    """The benchmark on a controller whose outputs are its address and its host key."""

    def program() -> Any:
        head = command.local.Command("head", create="true")
        made = Benchmark("b", RUN, shell(head, **options), head)
        return pulumi.Output.all(made.job_id, made.result).apply((seen if seen is not None else []).append)

    return declare(program, preview=preview, stdout={} if preview else {"head": KEY, "b-job": "17"})


@pytest.mark.parametrize("preview", [False, True])
def test_a_benchmark_over_ssh_is_exactly_these_resources(preview: bool) -> None:
    """This also holds in a preview, in which address and host key are unknown."""
    made = registered(preview=preview)
    types = {"head": LOCAL, "b": "slurm-stacks:index:Benchmark"}
    types |= {f"b-{part}": LOCAL for part in ("environment", "stage", "job")}
    assert made.types() == types
    assert {made.parents()[name] for name in types if name.startswith("b-")} == {"b"}
    assert made.after("b-environment") == {"head"}, "by its address"
    assert made.after("b-stage") == {"head"}
    assert made.after("b-job") >= {"head", "b-environment", "b-stage"}
    job = made.asked["b-job"]
    assert (job.deletedWith.rpartition("::")[2], job.deleteBeforeReplace) == ("head", True)


def test_job_and_result_are_public_and_known_when_the_job_is() -> None:
    seen: list[Any] = []
    registered(seen=seen)
    assert seen == [["17", f"/home/bench/{RUN.folder}/result.json"]]
    unknown: list[Any] = []
    registered(preview=True, seen=unknown)
    assert unknown == []


def parsed(line: str) -> tuple[str, dict[str, str]]:
    """A command line as verb and options, after a check that the program accepts them."""
    module, verb, *options = shlex.split(line)
    assert module == operations_ssh.__name__
    found = dict(option.removeprefix("--").split("=", 1) for option in options)
    assert set(found) == set(operations_ssh.OPTIONS[verb])
    return verb, found


def test_what_the_openssh_shell_runs() -> None:
    proxy = "aws ssm start-session --target %h"
    made = registered(proxy_command=proxy, identity="~/.ssh/id", patience=5)
    job, stage, environment = (made.inputs(f"b-{part}") for part in ("job", "stage", "environment"))
    run = {"tool": "slurm-stacks", "run": RUN.folder}
    assert parsed(job["create"]) == parsed(job["update"]) == ("submit", run)
    assert parsed(job["delete"]) == ("cancel", run)
    assert (job["stdin"], job["triggers"]) == (RUN.script, [RUN.workload_digest, RUN.folder])
    assert parsed(stage["create"]) == (
        "stage", {"shared": "/home", "staged": RUN.staged, "digest": RUN.workload_digest},
    )  # fmt: skip
    waits = {"apps": "/apps", "digest": PATHS.environment, "seconds": "1800"}
    assert parsed(environment["create"]) == ("environment", waits)
    assert (stage["triggers"], environment["triggers"]) == ([RUN.workload_digest], [PATHS.environment])
    for inputs in (job, stage, environment):
        (variable,) = inputs["environment"]
        assert variable == ssh.VARIABLE
    assert json.loads(job["environment"][ssh.VARIABLE]) == {
        "host": "head-id", "user": "ubuntu", "port": 22, "host_keys": [KEY], "proxy_command": proxy,
        "identity": "~/.ssh/id", "connect_seconds": ssh.CONNECT_SECONDS, "patience": 5,
    }  # fmt: skip


def test_inputs_hold_no_secret_and_nothing_of_this_login() -> None:
    """A second `up` from another folder, by another user or after another login changes nothing."""
    made, again = registered(), registered()
    for name in made.types():
        inputs = made.inputs(name)
        text = json.dumps(wire.plain(inputs))
        assert "PRIVATE" not in text
        assert "agent" not in text.replace("agent's", "")
        assert str(ROOT) not in text
        assert f"{Path.home()}/" not in text
        for key in ("privateKey", "privateKeyPassword", "password", "agentSocketPath"):
            assert key not in text
        assert again.inputs(name) == inputs


# --- the offline plan ------------------------------------------------------------------------------------

PROGRAM = """
import pulumi_aws as aws
from infra.benchmark import BenchmarkRun
from infra.clouds.shell import Endpoint, OpenSshShell, ShellPaths
from infra.slurm_cluster import Benchmark

head = aws.ec2.Instance("head", ami="ami-1", instance_type="m5.large")
endpoint = Endpoint(head.public_ip, "ubuntu", head.public_dns.apply(lambda name: [name]))
paths = ShellPaths("/apps", "/home", "0123456789abcdef")
run = BenchmarkRun("#!/bin/bash\\n", "d" * 64)
tunnel = head.id.apply(lambda i: f"aws ssm start-session --target {i}")
Benchmark("openssh", run, OpenSshShell(endpoint, paths, proxy_command=tunnel), head)
"""


@pytest.fixture
def planned(tmp_path: Path) -> Iterator[dict[str, dict[str, Any]]]:
    project = tmp_path / "p"
    project.mkdir()
    (project / "__main__.py").write_text(PROGRAM)
    (project / "Pulumi.yaml").write_text("name: p\nruntime: python\n")
    (project / "Pulumi.t.yaml").write_text("config: {}\n")
    yield {resource["name"]: resource["inputs"] for resource in plan(Stack(project, "t"))["resources"]}
    assert not (tmp_path / "cache").exists(), "a plan writes nothing"


def test_a_plan_shows_readable_placeholders(planned: dict[str, dict[str, Any]]) -> None:
    answer = json.loads(planned["openssh-job"]["environment"][ssh.VARIABLE])
    assert answer["host"] == "<head.publicIp>"
    assert answer["host_keys"] == ["<head.publicDns>"]
    assert answer["proxy_command"] == "aws ssm start-session --target <head.id>"
