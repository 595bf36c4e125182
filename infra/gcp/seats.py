"""The addresses of the machines that live as long as their cluster, apart from the machines.

They are there before any machine is, so that the settings can name the controller's; and a machine that is
replaced finds its own again, so that neither nodes nor users have to learn another one.
"""

from __future__ import annotations

import pulumi
from pulumi_gcp import compute

from infra.gcp.labels import labels
from infra.gcp.parts import Stations
from infra.node.model import ClusterDesign


class GcpSeats(pulumi.ComponentResource):
    """A reserved address in the network for each host, and a public one for those that shall have one.

    Attributes:
        private: host -> its private address.
        public: host -> its public address, for hosts tagged `public` (access.mode ssh) only.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        stations: Stations,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpSeats", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        self.private: dict[str, pulumi.Output[str]] = {}
        self.public: dict[str, pulumi.Output[str]] = {}
        for host in design.hosts:
            marks = labels(design, role=host.role, host=host.name)
            self.private[host.name] = compute.Address(
                f"{name}-{host.name}",
                name=f"{design.name}-{host.name}",
                description=f"{host.name} of cluster {design.name}",
                address_type="INTERNAL",
                purpose="GCE_ENDPOINT",
                project=design.project,
                region=design.region,
                subnetwork=stations[host.role].subnetwork,
                labels=marks,
                opts=own,
            ).address
            if "public" in host.tags:
                self.public[host.name] = compute.Address(
                    f"{name}-{host.name}-public",
                    name=f"{design.name}-{host.name}-public",
                    description=f"{host.name} of cluster {design.name}, for SSH",
                    address_type="EXTERNAL",
                    project=design.project,
                    region=design.region,
                    labels=marks,
                    opts=own,
                ).address
        self.register_outputs({"private": self.private, "public": self.public})
