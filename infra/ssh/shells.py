"""The two implementations of `Shell` over SSH, for providers whose login machine is not this machine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pulumi
import pulumi_command as command

from infra import bundle, workload_files
from infra.benchmark import BenchmarkRun
from infra.errors import UserError
from infra.program import mode
from infra.ssh import agent, hostkeys, lines, target

T = TypeVar("T")

# The path is relative, so that moving the checkout changes no resource. Commands run in the project's folder.
CLIENT = (".venv/bin/python", "-m", "cli.ssh.client")
DIAL_ERRORS = 8
DIAL_SECONDS = 5
"""With these two limits a host that is gone costs 50 s, and one that refuses or has another key costs 5 s."""
ENVIRONMENT_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An SSH server, and the keys by which it is recognized.

    Attributes:
        host: The server's address. Behind a ProxyCommand it is whatever that takes, such as an instance's id.
        host_keys: The public keys of the inventory, as `ssh-keyscan` or `ssh_host_*_key.pub` have them.
        ask: `Target.ask`. Only `OpenSshShell` knows it.
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


class RemoteShell:
    """Reaches the login machine with pulumi-command's own SSH client, for `access.mode: ssh` on AWS.

    The client takes a key from the SSH agent. Neither a private key nor the agent's path is an input: a key
    must not enter the state, and the path changes with each login.

    The client limits only how long it dials. A machine that accepts a connection and then says nothing holds
    it for ever, and it needs the machine in order to cancel a job. `OpenSshShell` has neither fault.

    This class stays because running stacks have `command:remote:Command` in their state, and no way leads
    from it to a `command:local:Command`. An alias would be an update, which the provider refuses: it reads
    the old state as that of a local command, which has no input `connection` (pulumi-go-provider 1.3.0,
    `ende.Decode` without `IgnoreUnrecognized`). Without an alias the engine first makes the new resource,
    which finds the benchmark's job running, and then deletes the old one, which cancels that job.

    Args:
        root: The project, whose workload is staged.
    """

    def __init__(self, endpoint: Endpoint, paths: ShellPaths, root: Path = bundle.ROOT) -> None:
        self.apps, self.shared, self.environment = paths.apps, paths.shared, paths.environment
        self._paths = paths
        self._root = root
        self._host_key = pulumi.Output.from_input(endpoint.host_keys).apply(
            lambda keys: _or_stop(lambda: hostkeys.pin(keys))
        )
        self._connection = command.remote.ConnectionArgs(
            host=endpoint.host,
            port=endpoint.port,
            user=endpoint.user,
            host_key=self._host_key,
            dial_error_limit=DIAL_ERRORS,
            per_dial_timeout=DIAL_SECONDS,
        )

    def prepare(self, name: str, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Stops the program where no SSH agent has a key, because the client's own message does not say
        so."""
        if mode.current() != "plan" and not pulumi.runtime.is_dry_run():
            _or_stop(agent.require)
        return command.remote.Command(
            name,
            connection=self._connection,
            create=lines.wait_for_environment(self.apps, self.environment, self._paths.wait),
            triggers=[self.environment],
            add_previous_output_in_env=False,
            opts=opts,
        )

    def stage(self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        archive = workload_files.read(self._root, run.own).archive()
        path = bundle.cached_file("workload", ".tar", archive, write=mode.current() != "plan")
        copied = command.remote.CopyToRemote(
            f"{name}-archive",
            connection=self._connection,
            source=pulumi.FileAsset(str(path)),
            remote_path=lines.archive_path(self.shared, run.staged),
            # A changed connection alone would copy nothing, not even to a new machine. A new machine has a
            # new key.
            triggers=[run.workload_digest, self._host_key],
            opts=opts,
        )
        return command.remote.Command(
            name,
            connection=self._connection,
            create=lines.unpack(self.shared, run.staged, bundle.digest(archive), stdin=False),
            triggers=[run.workload_digest],
            add_previous_output_in_env=False,
            logging=command.remote.Logging.NONE,
            opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[copied])),
        )

    def submit(
        self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions
    ) -> tuple[pulumi.Resource, pulumi.Output[str]]:
        line = lines.submit(self._paths.tool, run.folder)
        job = command.remote.Command(
            name,
            connection=self._connection,
            create=line,
            update=line,
            delete=lines.cancel(self._paths.tool, run.folder),
            stdin=run.script,
            triggers=[run.workload_digest, run.folder],
            # sshd refuses variables, and pulumi-command would warn of each one.
            add_previous_output_in_env=False,
            # The message of a failure has all of the output. Logging a line of 64 KiB would hang the
            # provider.
            logging=command.remote.Logging.NONE,
            opts=opts,
        )
        return job, job.stdout


class OpenSshShell:
    """Reaches the login machine with the engineer's own `ssh`, directly or through a ProxyCommand.

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
        connect_seconds: int = target.CONNECT_SECONDS,
        patience: int = target.PATIENCE_SECONDS,
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
            stdin=stdin,
            environment={target.VARIABLE: self._target},
            triggers=triggers,
            opts=opts,
        )


def _or_stop(check: Callable[[], T]) -> T:
    """Raises a UserError as a `RunError`, which Pulumi prints without a traceback."""
    try:
        return check()
    except UserError as error:
        raise pulumi.RunError(str(error)) from error


def _client(verb: str, *paths: str, **options: str) -> str:
    """A command line of `cli.ssh.client`."""
    return shlex.join([*CLIENT, verb, *(f"--{name}={value}" for name, value in options.items()), *paths])
