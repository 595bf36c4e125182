"""The service accounts of the cluster's machines. What they may do is written in `infra.gcp.policies`.

Accounts and grants are two components: the firewall names accounts, and grants name parts of the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra.clouds.reach import kinds
from infra.gcp import policies, service_accounts
from infra.node.model import ClusterDesign


@dataclass(frozen=True, slots=True)
class Reach:
    """What the grants name: the bucket's name, the secret as `projects/…/secrets/…`, the subnetwork."""

    bucket: pulumi.Input[str]
    secret: pulumi.Input[str]
    subnetwork: pulumi.Input[str]


class GcpAccounts(pulumi.ComponentResource):
    """A service account for each kind of machine. It may nothing.

    Attributes:
        of: controller | login | compute | image -> the account; login only where there are login machines,
            image only where images are baked.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:GcpAccounts", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        self.of = {
            role: gcp.serviceaccount.Account(
                f"{name}-{role}",
                account_id=service_accounts.account_id(design.name, role),
                display_name=f"{role} of the cluster {design.name}",
                project=design.project,
                opts=own,
            )
            for role in kinds(design)
        }
        self.register_outputs({"emails": {role: account.email for role, account in self.of.items()}})


class GcpIdentity(pulumi.ComponentResource):
    """What the accounts may do: the least that works.

    Attributes:
        emails: role -> the account's address.
        granted: what a machine needs before it starts. A grant takes effect some minutes after it is made
            (IAM's documentation says two, and seven at times), so a machine that is refused tries again.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        accounts: GcpAccounts,
        reach: Reach,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpIdentity", name, None, opts)
        self._name = name
        self._design = design
        self._own = pulumi.ResourceOptions(parent=self)
        self._accounts = accounts.of
        self.emails = {role: account.email for role, account in self._accounts.items()}
        self.granted: list[pulumi.Resource] = []
        for role in self._accounts:
            self.granted += [*self._everywhere(role), *self._bucket(role, reach.bucket)]
        if "controller" in self._accounts:
            # No other machine: every process of it, of any user, could read the munge key.
            self.granted += self._secret(reach.secret)
            self.granted += self._launches(reach.subnetwork)
        self.register_outputs({"emails": self.emails})

    def _everywhere(self, role: str) -> list[pulumi.Resource]:
        return [
            self._on_project(role, wanted.rpartition(".")[2], role=wanted) for wanted in policies.EVERYBODY
        ]

    def _secret(self, secret: pulumi.Input[str]) -> list[pulumi.Resource]:
        wanted = {"key": policies.READ_SECRET, "new-key": policies.WRITE_SECRET}
        return [
            gcp.secretmanager.SecretIamMember(
                f"{self._name}-controller-{part}",
                secret_id=secret,
                role=granted,
                member=self._accounts["controller"].member,
                opts=self._own,
            )
            for part, granted in wanted.items()
        ]

    def _bucket(self, role: str, bucket: pulumi.Input[str]) -> list[pulumi.Resource]:
        """Read all of the cluster's, write boot reports; read hooks' scripts in buckets of the user's."""
        own = pulumi.Output.from_input(bucket)
        reports = own.apply(lambda name: policies.own_reports(name, role).expression)
        title = policies.own_reports("", role).title
        made = [
            self._in_bucket(role, "bucket", own, policies.READ_OBJECTS),
            self._in_bucket(role, "reports", own, policies.WRITE_OBJECTS, title, reports),
        ]
        for number, (other, script) in enumerate(policies.hooks(self._design, role)):
            said = policies.one_object(other, script)
            part = f"hook-{number}"
            made.append(
                self._in_bucket(role, part, other, policies.READ_OBJECTS, said.title, said.expression)
            )
        return made

    def _in_bucket(
        self,
        role: str,
        part: str,
        bucket: pulumi.Input[str],
        granted: str,
        title: str | None = None,
        expression: pulumi.Input[str] = "",
    ) -> pulumi.Resource:
        condition = None
        if title is not None:
            condition = gcp.storage.BucketIAMMemberConditionArgs(title=title, expression=expression)
        return gcp.storage.BucketIAMMember(
            f"{self._name}-{role}-{part}",
            bucket=bucket,
            role=granted,
            member=self._accounts[role].member,
            condition=condition,
            opts=self._own,
        )

    def _launches(self, subnetwork: pulumi.Input[str]) -> list[pulumi.Resource]:
        """The controller makes and ends nodes: in its subnetwork, with their account, of their names."""
        design, head = self._design, self._accounts["controller"]
        launcher = gcp.projects.IAMCustomRole(
            f"{self._name}-launcher",
            # The id of a deleted role is taken for weeks: this one is new whenever the account is.
            role_id=head.unique_id.apply(lambda number: f"slurm_stacks_launcher_{number}"),
            title=f"Slurm controller of {design.name}",
            description=f"Launches and ends the nodes of the cluster {design.name}",
            permissions=policies.permissions(design),
            project=design.project,
            opts=self._own,
        )
        said = policies.nodes_only(design.name)
        return [
            launcher,
            self._on_project(
                "controller",
                "launches",
                role=launcher.name,
                condition=gcp.projects.IAMMemberConditionArgs(title=said.title, expression=said.expression),
            ),
            gcp.compute.SubnetworkIAMMember(
                f"{self._name}-controller-subnetwork",
                subnetwork=subnetwork,
                region=design.region,
                project=design.project,
                role=policies.SUBNETWORK,
                member=head.member,
                opts=self._own,
            ),
            gcp.serviceaccount.IAMMember(
                f"{self._name}-controller-nodes",
                service_account_id=self._accounts["compute"].name,
                role=policies.ACT_AS,
                member=head.member,
                opts=self._own,
            ),
        ]

    def _on_project(self, account: str, part: str, **what: Any) -> pulumi.Resource:
        return gcp.projects.IAMMember(
            f"{self._name}-{account}-{part}",
            project=str(self._design.project),
            member=self._accounts[account].member,
            opts=self._own,
            **what,
        )
