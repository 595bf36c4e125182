"""How the benchmark reaches a login machine on a cloud, and what lies where on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pulumi

from infra import bundle
from infra.benchmark import BenchmarkRun
from infra.node.model import ClusterDesign
from infra.provider import ClusterComponent
from infra.ssh.shells import Endpoint, OpenSshShell, Place, RemoteShell

if TYPE_CHECKING:
    from infra.benchmark import Shell

APPS, SHARED = "/apps", "/home"


class CloudCluster(ClusterComponent, Protocol):
    """A cluster whose login machine is reached by SSH."""

    @property
    def endpoint(self) -> Endpoint:
        """The login machine, as `ssh` finds it."""
        ...

    @property
    def proxy_command(self) -> pulumi.Input[str] | None:
        """OpenSSH's, relative to the project's folder; None: the endpoint has a public address."""
        ...


def place(design: ClusterDesign) -> Place:
    """The same paths on every machine of a cluster, and the environment that its controller makes."""
    return Place(APPS, SHARED, bundle.training_digest(design))


def of(design: ClusterDesign, cluster: CloudCluster) -> Shell:
    """By a public address with Pulumi's own SSH client; by `ssh` through a ProxyCommand, or where whoever
    connects has to be asked for their name."""
    if cluster.proxy_command is None and cluster.endpoint.ask is None:
        return RemoteShell(cluster.endpoint, place(design))
    return OpenSshShell(cluster.endpoint, place(design), cluster.proxy_command)


@dataclass(frozen=True, slots=True)
class Known:
    """A shell outside of a Pulumi program: where things lie is known, and nothing is declared."""

    apps: str
    shared: str
    environment: str

    @classmethod
    def of(cls, design: ClusterDesign) -> Known:
        lies = place(design)
        return cls(lies.apps, lies.shared, lies.environment)

    def prepare(self, name: str, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        raise RuntimeError(f"{name} is declared before its cluster")

    def stage(self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        raise RuntimeError(f"{name} is declared before its cluster")

    def submit(
        self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions
    ) -> tuple[pulumi.Resource, pulumi.Output[str]]:
        raise RuntimeError(f"{name} is declared before its cluster")
