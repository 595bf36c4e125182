"""Two `Shell`s over SSH, for every provider whose login machine is not this machine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import pulumi
import pulumi_command as command

from infra import bundle
from infra.benchmark import BenchmarkRun
from infra.errors import UserError
from infra.runner import mode
from infra.ssh import agent, archive, hostkeys, lines, target

P = ParamSpec("P")
T = TypeVar("T")

# Relative, so that moving the checkout is no change; the commands run in the project's folder.
CLIENT = (".venv/bin/python", "-m", "infra.ssh.client")
DIAL_ERRORS = 8
DIAL_SECONDS = 5
"""With these a host that is gone costs 50 s, one that refuses or has another key 5 s."""
ENVIRONMENT_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An SSH server and the keys by which it is known."""

    host: pulumi.Input[str]
    """Its address; behind a ProxyCommand whatever that takes for one (an instance's id)."""
    user: pulumi.Input[str]
    host_keys: pulumi.Input[Sequence[str]] | pulumi.Output[list[str]]
    """Public keys as `ssh-keyscan` or `ssh_host_*_key.pub` have them: the inventory's."""
    port: int = 22
    ask: str | None = None
    """`Target.ask`, for `OpenSshShell` alone."""


@dataclass(frozen=True, slots=True)
class Place:
    """What lies where on the login machine."""

    apps: str
    """Shared software: training environments are `<apps>/envs/<lock digest>`."""
    shared: str
    """Shared by every machine: benchmark runs are below `<shared>/bench`."""
    environment: str
    """The digest of the training environment's lock file."""
    tool: str = "slurm-stacks"
    """The cluster's own command."""
    wait: int = ENVIRONMENT_SECONDS
    """How long the login machine's boot may take to make the training environment."""


class RemoteShell:
    """By pulumi-command's own SSH client, with a key from the SSH agent: for `access.mode: ssh`.

    Neither a private key nor the agent's path is an input: the first must not enter the state, the second
    changes with each login. The client takes both from the environment.

    Its limits are on dialling alone: a machine that accepts connections and then says nothing holds it for
    ever, and to cancel a job it needs the machine. `OpenSshShell` without a ProxyCommand has neither fault.

    Args:
        proxy: one hop on the way.
        root: the project, whose workload is staged.
    """

    def __init__(
        self, endpoint: Endpoint, place: Place, proxy: Endpoint | None = None, root: Path = bundle.ROOT
    ) -> None:
        self.apps, self.shared, self.environment = place.apps, place.shared, place.environment
        self._place = place
        self._root = root
        self._host_key = _pinned(endpoint)
        self._connection = command.remote.ConnectionArgs(
            host=endpoint.host,
            port=endpoint.port,
            user=endpoint.user,
            host_key=self._host_key,
            dial_error_limit=DIAL_ERRORS,
            per_dial_timeout=DIAL_SECONDS,
            proxy=None
            if proxy is None
            else command.remote.ProxyConnectionArgs(
                host=proxy.host,
                port=proxy.port,
                user=proxy.user,
                host_key=_pinned(proxy),
                dial_error_limit=DIAL_ERRORS,
                per_dial_timeout=DIAL_SECONDS,
            ),
        )

    def prepare(self, name: str, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Stops the program where there is no SSH agent with a key: the client's own words do not say so."""
        if mode.current() != "plan" and not pulumi.runtime.is_dry_run():
            _or_stop(agent.require)
        return command.remote.Command(
            name,
            connection=self._connection,
            create=lines.wait_for_environment(self.apps, self.environment, self._place.wait),
            triggers=[self.environment],
            add_previous_output_in_env=False,
            opts=opts,
        )

    def stage(self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        content = archive.workload(self._root)
        planned = mode.current() == "plan"
        path = archive.place(content) if planned else archive.keep(content)
        copied = command.remote.CopyToRemote(
            f"{name}-archive",
            connection=self._connection,
            source=pulumi.FileAsset(str(path)),
            remote_path=lines.archive_path(self.shared, run.staged),
            # A changed connection alone would copy nothing, also to a new machine: its host key tells.
            triggers=[run.workload_digest, self._host_key],
            opts=opts,
        )
        return command.remote.Command(
            name,
            connection=self._connection,
            create=lines.unpack(self.shared, run.staged, archive.digest(content), stdin=False),
            triggers=[run.workload_digest],
            add_previous_output_in_env=False,
            logging=command.remote.Logging.NONE,
            opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[copied])),
        )

    def submit(
        self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions
    ) -> tuple[pulumi.Resource, pulumi.Output[str]]:
        line = lines.submit(self._place.tool, run.folder)
        job = command.remote.Command(
            name,
            connection=self._connection,
            create=line,
            update=line,
            delete=lines.cancel(self._place.tool, run.folder),
            stdin=run.script,
            triggers=[run.workload_digest, run.folder],
            # sshd refuses variables, and pulumi-command would warn of each.
            add_previous_output_in_env=False,
            # A failure's message has all of the output; to log a line of 64 KiB hangs the provider.
            logging=command.remote.Logging.NONE,
            opts=opts,
        )
        return job, job.stdout


class OpenSshShell:
    """By the engineer's own `ssh`, directly or through a ProxyCommand: for `access.mode: ssm` and `iap`.

    Args:
        proxy_command: OpenSSH's, a command whose standard input and output lead to the login machine's sshd.
        identity: the file of a private key that only `ssh` reads (`~` is understood); None: the agent's keys
            and the usual files.
        connect_seconds: how long one attempt to connect may take.
        patience: how long a machine that cannot be reached is tried again, in seconds.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        place: Place,
        proxy_command: pulumi.Input[str] | None = None,
        identity: str | None = None,
        connect_seconds: int = target.CONNECT_SECONDS,
        patience: int = target.PATIENCE_SECONDS,
    ) -> None:
        self.apps, self.shared, self.environment = place.apps, place.shared, place.environment
        self._place = place
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
        line = _client("environment", apps=self.apps, digest=self.environment, seconds=str(self._place.wait))
        return self._command(name, line, [self.environment], opts)

    def stage(self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        line = _client("stage", shared=self.shared, staged=run.staged, digest=run.workload_digest)
        return self._command(name, line, [run.workload_digest], opts)

    def submit(
        self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions
    ) -> tuple[pulumi.Resource, pulumi.Output[str]]:
        job = self._command(
            name,
            _client("submit", tool=self._place.tool, run=run.folder),
            [run.workload_digest, run.folder],
            opts,
            delete=_client("cancel", tool=self._place.tool, run=run.folder),
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


def _pinned(endpoint: Endpoint) -> pulumi.Output[str]:
    return pulumi.Output.from_input(endpoint.host_keys).apply(lambda keys: _or_stop(hostkeys.pin, keys))


def _or_stop(check: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Pulumi prints a `RunError` as it is, and any other exception with its traceback."""
    try:
        return check(*arguments, **named)
    except UserError as error:
        raise pulumi.RunError(str(error)) from error


def _client(verb: str, **options: str) -> str:
    """A command line of `infra.ssh.client`."""
    return shlex.join([*CLIENT, verb, *(f"--{name}={value}" for name, value in options.items())])
