"""The resources of both shells: exactly these, without secrets and without anything of this machine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulumi
import pulumi_command as command
import pytest

from cli.runner import wire
from cli.runner.plan import plan
from cli.ssh import client
from infra import bundle, workload_files
from infra.benchmark import BenchmarkRun
from infra.benchmark_component import Benchmark
from infra.program.stack import Stack
from infra.ssh import agent, lines, target
from infra.ssh.shells import Endpoint, OpenSshShell, RemoteShell, ShellPaths
from tests.support.checkout import ROOT
from tests.support.recorder import Recorder, declare

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
LOCAL, REMOTE, COPY = "command:local:Command", "command:remote:Command", "command:remote:CopyToRemote"
REQUIRE = agent.require
PATHS = ShellPaths("/apps", "/home", "0123456789abcdef")
RUN = BenchmarkRun("#!/bin/bash\n", "d" * 64)


@pytest.fixture(autouse=True)
def this_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("infra.ssh.agent.require", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/of-this-login/agent.1")


def shell(kind: str, head: command.local.Command, **options: Any) -> RemoteShell | OpenSshShell:
    keys = head.stdout.apply(lambda text: [text])
    endpoint = Endpoint(head.id, "ubuntu", keys)
    if kind == "remote":
        return RemoteShell(endpoint, PATHS, **options)
    return OpenSshShell(endpoint, PATHS, **options)


def registered(
    kind: str, *, preview: bool = False, seen: list[Any] | None = None, **options: Any
) -> Recorder:
    """The benchmark on a controller whose outputs are its address and its host key."""

    def program() -> Any:
        head = command.local.Command("head", create="true")
        made = Benchmark("b", RUN, shell(kind, head, **options), head)
        return pulumi.Output.all(made.job_id, made.result).apply((seen if seen is not None else []).append)

    return declare(program, preview=preview, stdout={} if preview else {"head": KEY, "b-job": "17"})


@pytest.mark.parametrize("preview", [False, True])
@pytest.mark.parametrize("kind", ["openssh", "remote"])
def test_a_benchmark_over_ssh_is_exactly_these_resources(kind: str, preview: bool) -> None:
    """This also holds in a preview, in which address and host key are unknown."""
    made = registered(kind, preview=preview)
    types = {"head": LOCAL, "b": "slurm-stacks:index:Benchmark"}
    parts = ("environment", "stage", "job")
    types |= {f"b-{part}": LOCAL if kind == "openssh" else REMOTE for part in parts}
    if kind == "remote":
        types["b-stage-archive"] = COPY
    assert made.types() == types
    assert {made.parents()[name] for name in types if name.startswith("b-")} == {"b"}
    assert made.after("b-environment") == {"head"}, "by its address"
    assert made.after("b-stage") == {"head"} | ({"b-stage-archive"} if kind == "remote" else set())
    assert made.after("b-job") >= {"head", "b-environment", "b-stage"}
    job = made.asked["b-job"]
    assert (job.deletedWith.rpartition("::")[2], job.deleteBeforeReplace) == ("head", True)


@pytest.mark.parametrize("kind", ["openssh", "remote"])
def test_job_and_result_are_public_and_known_when_the_job_is(kind: str) -> None:
    seen: list[Any] = []
    registered(kind, seen=seen)
    assert seen == [["17", f"/home/bench/{RUN.folder}/result.json"]]
    unknown: list[Any] = []
    registered(kind, preview=True, seen=unknown)
    assert unknown == []


def connection(made: Recorder, name: str) -> dict[str, Any]:
    marked = made.inputs(name)["connection"]
    assert wire.is_secret(marked), "the SDK keeps whole connections secret"
    found: dict[str, Any] = wire.plain(marked)
    return found


def test_every_connection_is_pinned_bounded_and_without_a_key() -> None:
    made = registered("remote")
    bounds = {"dialErrorLimit": 8, "perDialTimeout": 5}
    for name in ("b-environment", "b-stage-archive", "b-stage", "b-job"):
        found = connection(made, name)
        assert found == {"host": "head-id", "port": 22, "user": "ubuntu", "hostKey": KEY, **bounds}


def test_what_the_remote_shell_runs() -> None:
    made = registered("remote")
    job = made.inputs("b-job")
    assert job["create"] == job["update"] == f"exec slurm-stacks submit --run={RUN.folder}"
    assert f"slurm-stacks cancel --run={RUN.folder} ||" in job["delete"]
    assert (job["stdin"], job["triggers"]) == (RUN.script, [RUN.workload_digest, RUN.folder])
    content = workload_files.read(ROOT).archive()
    copied, stage = made.inputs("b-stage-archive"), made.inputs("b-stage")
    assert Path(copied["source"].path).read_bytes() == content
    assert copied["remotePath"] == f"/home/bench/.{RUN.staged}.tar"
    assert copied["triggers"] == [RUN.workload_digest, KEY], "another machine needs another copy"
    assert stage["create"] == lines.unpack("/home", RUN.staged, bundle.digest(content), stdin=False)
    assert stage["triggers"] == [RUN.workload_digest]
    assert made.inputs("b-environment")["triggers"] == [PATHS.environment]
    assert job["logging"] == stage["logging"] == "none", "a line of 64 KiB would hang the provider"
    for name in ("b-environment", "b-stage", "b-job"):
        # sshd refuses environment variables, with a warning for each.
        assert made.inputs(name)["addPreviousOutputInEnv"] is False
        assert "environment" not in made.inputs(name)


def parsed(line: str) -> tuple[str, dict[str, str]]:
    """A command line as verb and options, after a check that the program accepts them."""
    python, flag, module, verb, *options = shlex.split(line)
    assert (python, flag, module) == (".venv/bin/python", "-m", client.__name__)
    found = dict(option.removeprefix("--").split("=", 1) for option in options)
    assert set(found) == set(client.OPTIONS[verb])
    return verb, found


def test_what_the_openssh_shell_runs() -> None:
    proxy = "aws ssm start-session --target %h"
    made = registered("openssh", proxy_command=proxy, identity="~/.ssh/id", patience=5)
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
        assert variable == target.VARIABLE
    assert json.loads(job["environment"][target.VARIABLE]) == {
        "host": "head-id", "user": "ubuntu", "port": 22, "host_keys": [KEY], "proxy_command": proxy,
        "identity": "~/.ssh/id", "connect_seconds": target.CONNECT_SECONDS, "patience": 5,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["openssh", "remote"])
def test_inputs_hold_no_secret_and_nothing_of_this_login(kind: str) -> None:
    """A second `up` from another folder, by another user or after another login changes nothing."""
    made, again = registered(kind), registered(kind)
    for name in made.types():
        inputs = made.inputs(name)
        inputs.pop("source", None)  # compared by content: the path does not matter
        text = json.dumps(wire.plain(inputs))
        assert "PRIVATE" not in text
        assert "agent" not in text.replace("agent's", "")
        assert str(ROOT) not in text
        assert f"{Path.home()}/" not in text
        for key in ("privateKey", "privateKeyPassword", "password", "agentSocketPath"):
            assert key not in text
        repeated = again.inputs(name)
        repeated.pop("source", None)
        assert repeated == inputs


def test_without_an_agent_the_program_stops_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.ssh.agent.require", REQUIRE)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(pulumi.RunError, match="there is no SSH agent here"):
        registered("remote")
    registered("remote", preview=True)  # a preview connects to nothing
    registered("openssh")  # ssh has other keys than an agent's


def test_a_host_key_that_is_none_stops_the_program() -> None:
    def program() -> Any:
        head = command.local.Command("head", create="true")
        return RemoteShell(Endpoint("h", "u", []), PATHS).prepare("b", pulumi.ResourceOptions(parent=head))

    with pytest.raises(pulumi.RunError, match="published no SSH host key"):
        declare(program)


# --- the offline plan ------------------------------------------------------------------------------------

PROGRAM = """
import pulumi_aws as aws
from infra.benchmark import BenchmarkRun
from infra.benchmark_component import Benchmark
from infra.ssh.shells import Endpoint, OpenSshShell, RemoteShell, ShellPaths

head = aws.ec2.Instance("head", ami="ami-1", instance_type="m5.large")
endpoint = Endpoint(head.public_ip, "ubuntu", head.public_dns.apply(lambda name: [name]))
paths = ShellPaths("/apps", "/home", "0123456789abcdef")
run = BenchmarkRun("#!/bin/bash\\n", "d" * 64)
tunnel = head.id.apply(lambda i: f"aws ssm start-session --target {i}")
Benchmark("remote", run, RemoteShell(endpoint, paths), head)
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


def test_a_plan_shows_readable_placeholders(
    planned: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.loads(planned["openssh-job"]["environment"][target.VARIABLE])
    assert told["host"] == "<head.publicIp>"
    assert told["host_keys"] == ["<head.publicDns>"]
    assert told["proxy_command"] == "aws ssm start-session --target <head.id>"
    assert planned["remote-job"]["connection"] == "[secret]", "as the SDK has it"
    assert planned["remote-job"]["create"].startswith("exec slurm-stacks submit")
    assert planned["remote-stage-archive"]["triggers"] == ["d" * 64, "<head.publicDns>"]
    assert planned["remote-stage-archive"]["source"]["path"].endswith(".tar")
