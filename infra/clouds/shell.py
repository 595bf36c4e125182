"""How the benchmark reaches a cloud's login machine, and where things lie on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pulumi

from infra import bundle
from infra.inventory import ClusterComponent
from infra.ssh.shells import Endpoint, OpenSshShell, ShellPaths
from node.model import APPS, SHARED, ClusterDesign

if TYPE_CHECKING:
    from infra.benchmark import Shell


class CloudCluster(ClusterComponent, Protocol):
    """A cluster whose login machine is reached by SSH."""

    @property
    def endpoint(self) -> Endpoint:
        """The login machine's SSH server."""
        ...

    @property
    def proxy_command(self) -> pulumi.Input[str] | None:
        """The ProxyCommand of OpenSSH, relative to the project's folder.

        `None` means that the endpoint has a public address.
        """
        ...


def paths_of(design: ClusterDesign) -> ShellPaths:
    """The paths, which are the same on every machine, and the environment that the controller makes."""
    return ShellPaths(APPS, SHARED, bundle.training_digest(design))


def of(design: ClusterDesign, cluster: CloudCluster) -> Shell:
    """The shell of a cluster's login machine."""
    return OpenSshShell(cluster.endpoint, paths_of(design), cluster.proxy_command)
