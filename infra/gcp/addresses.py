"""The addresses of the machines that live as long as their cluster. They are apart from the machines.

They exist before any machine does, so that the settings can name the controller's address. A machine that is
replaced gets its address back, so that neither nodes nor users have to learn another one.
"""

from __future__ import annotations

import pulumi
from pulumi_gcp import compute

from infra.gcp.labels import labels
from infra.gcp.role_resources import ResourcesByRole
from node.model import ClusterDesign


class GcpAddresses(pulumi.ComponentResource):
    """A reserved address in the network for each host, and a public address for the hosts that need one.

    Attributes:
        private: host -> its private address.
        public: host -> its public address, only for hosts tagged `public` (access.mode ssh).
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        resources_by_role: ResourcesByRole,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpAddresses", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        self.private: dict[str, pulumi.Output[str]] = {}
        self.public: dict[str, pulumi.Output[str]] = {}
        for host in design.hosts:
            own_labels = labels(design, role=host.role, host=host.name)
            self.private[host.name] = compute.Address(
                f"{name}-{host.name}",
                name=f"{design.name}-{host.name}",
                description=f"{host.name} of cluster {design.name}",
                address_type="INTERNAL",
                purpose="GCE_ENDPOINT",
                project=design.project,
                region=design.region,
                subnetwork=resources_by_role[host.role].subnetwork,
                labels=own_labels,
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
                    labels=own_labels,
                    opts=own,
                ).address
        self.register_outputs({"private": self.private, "public": self.public})
