"""How the benchmark reaches a cloud's login machine: over SSH, with the engineer's own `ssh`.

The commands that `OpenSshShell` declares use `ssh` directly or through a ProxyCommand (Session Manager,
Identity-Aware Proxy), and recognize the machine by the host keys that the cluster published. No private key
is seen: it stays with the SSH agent, or in a file that only `ssh` reads.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pulumi
import pulumi_command as command

from infra import bundle, ssh
from infra.benchmark import BenchmarkRun
from infra.inventory import ClusterComponent
from infra.program.launcher import INTERPRETER
from node.design.model import APPS, SHARED, ClusterDesign

if TYPE_CHECKING:
    from infra.benchmark import Shell

CLIENT = "operations.ssh"
ENVIRONMENT_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An SSH server, and the keys by which it is recognized.

    Attributes:
        host: The server's address. Behind a ProxyCommand it is whatever that takes, such as an instance's id.
        host_keys: The public keys of the inventory, as `ssh-keyscan` or `ssh_host_*_key.pub` have them.
        ask: `Target.ask`.
    """

    host: pulumi.Input[str]
    user: pulumi.Input[str]
    host_keys: pulumi.Input[Sequence[str]] | pulumi.Output[list[str]]
    port: int = 22
    ask: str | None = None


@dataclass(frozen=True, slots=True)
class ShellPaths:
    """Where things lie on the login machine.

    Attributes:
        apps: The folder of shared software. A training environment is `<apps>/envs/<lock digest>`.
        shared: The folder that every machine sees. Benchmark runs lie below `<shared>/bench`.
        environment: The digest of the training environment's lock file.
        tool: The cluster's own command.
        wait: How many seconds the login machine's boot may take to make the training environment.
    """

    apps: str
    shared: str
    environment: str
    tool: str = "slurm-stacks"
    wait: int = ENVIRONMENT_SECONDS


class OpenSshShell:
    """The way to the login machine by the engineer's own `ssh`, directly or through a ProxyCommand.

    It is not pulumi-command's own SSH client (`command.remote`): that one has no ProxyCommand, waits for ever
    for a machine that accepts a connection and then says nothing, and needs the machine to cancel a job.

    Args:
        proxy_command: A command for OpenSSH whose standard input and output lead to the login machine's sshd.
        identity: The file of a private key that only `ssh` reads (`~` is understood). `None` means the
            agent's keys and the usual files.
        connect_seconds: How many seconds one attempt to connect may take.
        patience: For how many seconds a machine that cannot be reached is tried again.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        paths: ShellPaths,
        proxy_command: pulumi.Input[str] | None = None,
        identity: str | None = None,
        connect_seconds: int = ssh.CONNECT_SECONDS,
        patience: int = ssh.PATIENCE_SECONDS,
    ) -> None:
        self.apps, self.shared, self.environment = paths.apps, paths.shared, paths.environment
        self._paths = paths
        self._target = pulumi.Output.json_dumps(
            {
                "host": endpoint.host,
                "user": endpoint.user,
                "port": endpoint.port,
                "host_keys": endpoint.host_keys,
                "proxy_command": proxy_command,
                "identity": identity,
                "connect_seconds": connect_seconds,
                "patience": patience,
                **({} if endpoint.ask is None else {"ask": endpoint.ask}),
            },
            sort_keys=True,
        )

    def prepare(self, name: str, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        line = _client("environment", apps=self.apps, digest=self.environment, seconds=str(self._paths.wait))
        return self._command(name, line, [self.environment], opts)

    def stage(self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        line = _client("stage", *run.own, shared=self.shared, staged=run.staged, digest=run.workload_digest)
        return self._command(name, line, [run.workload_digest], opts)

    def submit(
        self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions
    ) -> tuple[pulumi.Resource, pulumi.Output[str]]:
        job = self._command(
            name,
            _client("submit", tool=self._paths.tool, run=run.folder),
            [run.workload_digest, run.folder],
            opts,
            delete=_client("cancel", tool=self._paths.tool, run=run.folder),
            stdin=run.script,
        )
        return job, job.stdout

    def guard(self, name: str, queue: pulumi.Input[str], opts: pulumi.ResourceOptions) -> pulumi.Resource:
        return command.local.Command(
            name,
            delete=_client("guard", tool=self._paths.tool),
            interpreter=INTERPRETER,
            environment={ssh.VARIABLE: self._target},
            triggers=[queue],
            opts=opts,
        )

    def _command(
        self,
        name: str,
        line: str,
        triggers: list[str],
        opts: pulumi.ResourceOptions,
        *,
        delete: str | None = None,
        stdin: str | None = None,
    ) -> command.local.Command:
        return command.local.Command(
            name,
            create=line,
            update=line,
            delete=delete,
            interpreter=INTERPRETER,
            stdin=stdin,
            environment={ssh.VARIABLE: self._target},
            triggers=triggers,
            opts=opts,
        )


def _client(verb: str, *paths: str, **options: str) -> str:
    """Return a command line of `operations.ssh`."""
    return shlex.join([CLIENT, verb, *(f"--{name}={value}" for name, value in options.items()), *paths])


class CloudCluster(ClusterComponent, Protocol):
    """A cluster whose login machine is reached by SSH."""

    @property
    def endpoint(self) -> Endpoint:
        """The login machine's SSH server."""
        ...

    @property
    def proxy_command(self) -> pulumi.Input[str] | None:
        """The ProxyCommand of OpenSSH, for commands that the engine runs in the program's folder.

        `None` means that the endpoint has a public address.
        """
        ...


def shell_paths(design: ClusterDesign) -> ShellPaths:
    """Return the paths, the same on every machine, and the environment that the controller makes."""
    return ShellPaths(APPS, SHARED, bundle.training_digest(design))


def cluster_shell(design: ClusterDesign, cluster: CloudCluster) -> Shell:
    """Return the shell of a cluster's login machine."""
    return OpenSshShell(cluster.endpoint, shell_paths(design), cluster.proxy_command)
