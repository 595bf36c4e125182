"""SSH access on AWS: the machine by its tag, its published host keys, and Session Manager if configured."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pulumi
import pytest

from cli.findings import Severity
from cli.providers import provider
from cli.providers.aws import diagnosis
from cli.providers.aws.provider import AwsProvider
from infra.aws import access
from infra.aws.cluster import AwsCluster
from infra.clouds import shell
from infra.clouds.commands import ClusterRef
from infra.environments import lock_digest
from infra.errors import EXIT_REFUSED
from infra.program import launcher, stand_ins
from infra.program.stack import Stack
from infra.providers import create_cluster
from node.design.model import Access, ClusterDesign
from operations.access import StackUp
from operations.aws import __main__, instance_connect
from operations.aws import account as access_to_aws
from operations.aws.cloud import AwsCloud
from operations.clouds import own_keys, ssh_access
from tests.support import sentences
from tests.support.aws_account import KEY, Account, account, moto, nobody
from tests.support.aws_machines import Machines
from tests.support.aws_mocks import CPU, aws_design, declare, ssh_design
from tests.support.checkout import CODE, ROOT
from tests.support.operation_lines import words_pasted

__all__ = ["account", "moto", "nobody"]

PROXY = "aws ssm start-session --region eu-west-1 --target %h --document-name AWS-StartSSHSession "
PROXY += "--parameters portNumber=%p"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without keys and without an agent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


def find(design: ClusterDesign) -> ssh_access.Login:
    return ssh_access.find(Stack(ROOT, "test"), design, AwsCloud(ClusterRef.of(design)))


def up(account: Account, design: ClusterDesign) -> ssh_access.Login:
    account.bucket()
    account.head()
    account.report("controller", "ready")
    return find(design)


# --- which machine ----------------------------------------------------------------------------------------


def test_a_public_head_is_reached_by_its_address(account: Account, home: Path) -> None:
    login = up(account, ssh_design())
    (machine,) = account.ec2.describe_instances()["Reservations"][0]["Instances"]
    assert login.target.host == machine.get("PublicIpAddress", machine["PrivateIpAddress"])
    assert (login.target.user, login.target.host_keys) == ("ubuntu", (KEY,))
    assert login.target.proxy_command is None


def test_session_manager_is_given_the_instances_id(account: Account, home: Path) -> None:
    login = up(account, aws_design(access=Access("ssm", key="mine")))
    assert login.target.host.startswith("i-")
    assert login.target.proxy_command == PROXY


def test_of_a_machine_that_somebody_stopped_it_says_what_starts_it(account: Account) -> None:
    machine = account.head()
    account.ec2.stop_instances(InstanceIds=[machine])
    with sentences.raises("ssh.machine-stopped", "`./cluster up --stack test`", varies=[machine]):
        find(aws_design())


# --- a key for each connection ----------------------------------------------------------------------------


def test_without_a_key_pair_the_connection_brings_a_key_of_the_users(tmp_path: Path) -> None:
    proxy = access.ssh_proxy("eu-west-1", "ssm", None)
    assert proxy is not None
    line = proxy.replace("%h", "i-1").replace("%p", "22").replace("%r", "u")
    options = __main__.parse(words_pasted(line)[1:])
    assert (options.verb, options.region, options.instance, options.user, options.port) == (
        *("proxy", "eu-west-1", "i-1", "u", "22"),
    )


def test_from_any_folder_the_proxy_finds_this_project(tmp_path: Path) -> None:
    """This also holds for a path with a space and a per cent sign."""
    project = tmp_path / "a 100% project"
    project.mkdir()
    (project / ".venv").symlink_to(ROOT / ".venv")
    for part in CODE:
        (project / part).symlink_to(ROOT / part)
    proxy = access.ssh_proxy("eu-west-1", "ssm", None, launcher.here(project))
    assert proxy is not None
    line = proxy.replace("%%", "%").partition(" proxy ")[0]
    done = subprocess.run(
        ["sh", "-c", f"exec {line} --help"], cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "proxy" in done.stdout


def test_the_key_is_the_agents_or_that_of_a_usual_file(home: Path) -> None:
    folder = home / ".ssh"
    with sentences.raises("ssh.no-key", "`ssh-keygen -t ed25519`") as caught:
        own_keys.own_key(folder)
    assert caught.value.exit_code == EXIT_REFUSED
    folder.mkdir()
    (folder / "id_rsa.pub").write_text("ssh-rsa AAAA me\n")
    assert own_keys.own_key(folder) == "ssh-rsa AAAA me"
    (folder / "id_ed25519.pub").write_text(KEY)
    assert own_keys.own_key(folder) == KEY


def test_the_key_is_sent_to_that_machine_for_that_user(home: Path) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id_ed25519.pub").write_text(KEY)
    sent: list[dict[str, str]] = []

    class Connect:
        def send_ssh_public_key(self, **arguments: str) -> None:
            sent.append(arguments)

    instance_connect.bring_key(Connect(), "i-1", "ubuntu", home)
    assert sent == [{"InstanceId": "i-1", "InstanceOSUser": "ubuntu", "SSHPublicKey": KEY}]


def test_the_proxy_becomes_the_aws_cli_or_says_that_there_is_none(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_to_aws, "client", lambda *_: None)
    monkeypatch.setattr(__main__, "bring_key", lambda *_: None)
    ran: list[list[str]] = []
    monkeypatch.setattr(os, "execvp", lambda file, line: ran.append(line) or {})  # type: ignore[func-returns-value]
    options = __main__.parse(["proxy", "--region", "r", "--instance", "i-1", "--user", "u"])
    __main__.proxy(options)
    assert ran == [access.session("r", "i-1", "22")]

    def missing(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(os, "execvp", missing)
    with sentences.raises("cloud.tool-missing", "`aws`"):
        __main__.proxy(options)


# --- the benchmark's shell --------------------------------------------------------------------------------


def shells(design: ClusterDesign) -> Any:
    found: list[Any] = []

    def program() -> None:
        found.append(create_cluster(design.name, design, stand_ins.NONE).shell)

    declare(program, aws=Machines())
    return found[0]


def test_the_shell_of_a_machine_behind_session_manager_knows_its_keys() -> None:
    seen: list[Any] = []

    def program() -> Any:
        design = aws_design()
        made = shell.cluster_shell(design, AwsCluster("c", design))
        job = made.prepare("environment", pulumi.ResourceOptions())
        return job.environment.apply(seen.append)  # type: ignore[attr-defined]

    declare(program, aws=Machines())
    (environment,) = seen
    assert '"host": "c-head-controller-id"' in environment["SLURM_STACKS_SSH"]
    assert '"host_keys": ["ssh-ed25519 AAAAkey"]' in environment["SLURM_STACKS_SSH"]
    assert str(ROOT) not in environment["SLURM_STACKS_SSH"], "moving the checkout is no change"


def test_without_a_program_the_shell_still_knows_where_things_lie() -> None:
    gpu, cpu = aws_design(), aws_design(partitions=(CPU,))
    from dataclasses import replace

    from node.design.accelerators import Accelerator

    gpu = replace(gpu, partitions=(replace(CPU, accelerator=Accelerator("t4", 1)),))
    for design, kind in ((gpu, "gpu"), (cpu, "cpu")):
        known = AwsProvider().layout(design)
        assert (known.apps, known.shared) == ("/apps", "/home")
        assert known.environment == lock_digest(ROOT, kind)


# --- credentials ------------------------------------------------------------------------------------------


def test_the_provider_is_one_of_them() -> None:
    assert isinstance(provider.load("aws"), AwsProvider)


def test_without_credentials_up_is_refused_in_one_message(nobody: None) -> None:
    with sentences.raises("aws.no-credentials", "`./cluster plan`") as caught:
        AwsProvider().check_host(aws_design())
    assert caught.value.exit_code == EXIT_REFUSED


def test_without_credentials_the_status_is_refused_too(nobody: None) -> None:
    """A program can tell a refusal from a cluster that does not answer."""
    with sentences.raises("aws.no-credentials", "`./cluster plan`") as caught:
        AwsProvider().status(StackUp(Stack(ROOT, "aws-cpu"), "aws"))
    assert caught.value.exit_code == EXIT_REFUSED


def test_with_credentials_nothing_is_asked_of_aws(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    AwsProvider().check_host(aws_design())


@pytest.mark.parametrize(
    ("of_aws", "code", "named", "status"),
    [
        ("ExpiredToken", "aws.credentials-expired", "`aws sso login`", 3),
        ("InvalidClientTokenId", "aws.credentials-refused", "`aws sso login`", 3),
        ("UnauthorizedOperation", "aws.not-allowed", "DescribeInstances", 3),
        ("RequestLimitExceeded", "aws.refused", "DescribeInstances: RequestLimitExceeded: why", 1),
    ],
)
def test_what_aws_refuses_is_one_sentence(of_aws: str, code: str, named: str, status: int) -> None:
    from botocore.exceptions import ClientError

    with sentences.raises(code, named) as caught, access_to_aws.explained():
        raise ClientError({"Error": {"Code": of_aws, "Message": "why"}}, "DescribeInstances")
    assert caught.value.exit_code == status


def test_an_aws_that_does_not_answer_is_said() -> None:
    from botocore.exceptions import EndpointConnectionError

    with sentences.raises("aws.no-answer"), access_to_aws.explained():
        raise EndpointConnectionError(endpoint_url="http://x")


# --- the doctor -------------------------------------------------------------------------------------------


def findings(design: ClusterDesign) -> dict[str, Severity]:
    return {f.check: f.severity for check in diagnosis.checks(design) for f in check.look()}


def test_the_doctor_names_what_this_machine_lacks(
    nobody: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home))
    assert findings(aws_design()) == dict.fromkeys(
        ("credentials", "ssh.client", "ssh.aws", "ssh.session-manager-plugin", "ssh.key"), Severity.STOPS
    )
    assert findings(ssh_design())["ssh.key"] is Severity.STOPS


def test_the_doctor_finds_nothing_wrong_where_all_is_there(
    account: Account, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in ("ssh", "aws", "session-manager-plugin"):
        (home / tool).write_text("#!/bin/sh\n")
        (home / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(home))
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id_ed25519.pub").write_text(KEY)
    # moto has no quotas of EC2.
    found = findings(aws_design())
    assert found.pop("quotas") is Severity.WARNS
    assert set(found.values()) == {Severity.FINE}
