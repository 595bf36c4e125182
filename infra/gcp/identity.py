"""The service accounts of the cluster's machines, and the secret that only these may read.

`infra.gcp.policies` says what the accounts may do. Accounts and grants are two components, because the
firewall names accounts and grants name parts of the network.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_gcp as gcp
from pulumi_gcp import secretmanager

from infra.clouds.firewall import identities
from infra.gcp import policies
from infra.gcp.names import account_id, labels
from node.bootstrap.vm.images import ROLE as IMAGE
from node.design.model import ClusterDesign


@dataclass(frozen=True, slots=True)
class AccessTargets:
    """What the grants name.

    Attributes:
        bucket: The bucket's name.
        secret: `projects/…/secrets/…`.
        subnetwork: The subnetwork's name.
    """

    bucket: pulumi.Input[str]
    secret: pulumi.Input[str]
    subnetwork: pulumi.Input[str]


class GcpAccounts(pulumi.ComponentResource):
    """A service account for each kind of machine, without any permission.

    Attributes:
        by_role: controller | login | compute | image -> the account. Login is there only with login machines,
            and image only where images are baked.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:GcpAccounts", name, None, opts)
        child_opts = pulumi.ResourceOptions(parent=self)
        self.by_role = {
            role: gcp.serviceaccount.Account(
                f"{name}-{role}",
                account_id=account_id(design.name, role),
                display_name=f"{role} of the cluster {design.name}",
                project=design.project,
                opts=child_opts,
            )
            for role in identities(design)
        }
        self.register_outputs({"emails": {role: account.email for role, account in self.by_role.items()}})


class GcpIdentity(pulumi.ComponentResource):
    """What the accounts may do: the fewest permissions that work.

    Attributes:
        emails: role -> the account's email address.
        grants: What a machine needs before it starts. A grant takes effect some minutes after it is made
            (IAM's documentation says two, and sometimes seven), so a machine that is refused tries again.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        accounts: GcpAccounts,
        targets: AccessTargets,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpIdentity", name, None, opts)
        self._name = name
        self._design = design
        self._child_opts = pulumi.ResourceOptions(parent=self)
        self._accounts = accounts.by_role
        self.emails = {role: account.email for role, account in self._accounts.items()}
        self.grants: list[pulumi.Resource] = []
        for role in self._accounts:
            self.grants += [*self._everywhere(role), *self._bucket(role, targets.bucket)]
        if "controller" in self._accounts:
            # No other machine gets this: where the stack file opens the metadata address, every process of a
            # node could read the munge key.
            self.grants += self._secret(targets.secret)
            self.grants += self._directory()
            self.grants += self._launches(targets.subnetwork)
            if (backups := policies.backups(design)) is not None:
                bucket, limit = backups
                part, granted = "backups", policies.WRITE_OBJECTS
                self.grants.append(
                    self._in_bucket("controller", part, bucket, granted, limit.title, limit.expression)
                )
        for member in design.access.users:
            self._person(member, targets.bucket)
        self.register_outputs({"emails": self.emails})

    def _person(self, member: str, bucket: pulumi.Input[str]) -> None:
        """Let somebody log in to the machines, and read where they are. No machine waits for it."""
        # A name by the member, so that removing one leaves the others' grants alone.
        name = f"{self._name}-user-{hashlib.sha256(member.encode()).hexdigest()[:8]}"
        gcp.storage.BucketIAMMember(
            f"{name}-bucket",
            bucket=bucket,
            role=policies.READ_OBJECTS,
            member=member,
            opts=self._child_opts,
        )
        for role, account in self._accounts.items():
            if role != IMAGE:  # nobody logs in to what becomes an image
                gcp.serviceaccount.IAMMember(
                    f"{name}-{role}",
                    service_account_id=account.name,
                    role=policies.ACT_AS,
                    member=member,
                    opts=self._child_opts,
                )

    def _everywhere(self, role: str) -> list[pulumi.Resource]:
        return [
            self._on_project(role, wanted.rpartition(".")[2], role=wanted) for wanted in policies.EVERYBODY
        ]

    def _secret(self, secret: pulumi.Input[str]) -> list[pulumi.Resource]:
        wanted = {"munge-read": policies.READ_SECRET, "munge-write": policies.WRITE_SECRET}
        return [
            gcp.secretmanager.SecretIamMember(
                f"{self._name}-controller-{part}",
                secret_id=secret,
                role=granted_role,
                member=self._accounts["controller"].member,
                opts=self._child_opts,
            )
            for part, granted_role in wanted.items()
        ]

    def _directory(self) -> list[pulumi.Resource]:
        """Let the controller read the password with which machines ask the directory of users."""
        directory = self._design.access.directory
        if directory is None or directory.password_secret is None:
            return []
        return [
            gcp.secretmanager.SecretIamMember(
                f"{self._name}-controller-directory",
                secret_id=directory.password_secret,
                role=policies.READ_SECRET,
                member=self._accounts["controller"].member,
                opts=self._child_opts,
            )
        ]

    def _bucket(self, role: str, bucket: pulumi.Input[str]) -> list[pulumi.Resource]:
        """Let a role read the cluster's bucket, write boot reports, and read hooks in the user's buckets."""
        own_bucket = pulumi.Output.from_input(bucket)
        reports = own_bucket.apply(lambda name: policies.own_reports(name, role).expression)
        title = policies.own_reports("", role).title
        grants = [
            self._in_bucket(role, "bucket", own_bucket, policies.READ_OBJECTS),
            self._in_bucket(role, "reports", own_bucket, policies.WRITE_OBJECTS, title, reports),
        ]
        for number, (other, script) in enumerate(policies.hooks(self._design, role)):
            condition = policies.one_object(other, script)
            part = f"hook-{number}"
            grants.append(
                self._in_bucket(
                    role, part, other, policies.READ_OBJECTS, condition.title, condition.expression
                )
            )
        for number, (mounted, wanted) in enumerate(policies.buckets(self._design, role)):
            grants.append(self._in_bucket(role, f"mount-{number}", mounted, wanted))
        return grants

    def _in_bucket(
        self,
        role: str,
        part: str,
        bucket: pulumi.Input[str],
        granted_role: str,
        title: str | None = None,
        expression: pulumi.Input[str] = "",
    ) -> pulumi.Resource:
        condition = None
        if title is not None:
            condition = gcp.storage.BucketIAMMemberConditionArgs(title=title, expression=expression)
        return gcp.storage.BucketIAMMember(
            f"{self._name}-{role}-{part}",
            bucket=bucket,
            role=granted_role,
            member=self._accounts[role].member,
            condition=condition,
            opts=self._child_opts,
        )

    def _launches(self, subnetwork: pulumi.Input[str]) -> list[pulumi.Resource]:
        """Let the controller make and end nodes in its subnetwork, with their account, under their names."""
        design, head = self._design, self._accounts["controller"]
        launcher = gcp.projects.IAMCustomRole(
            f"{self._name}-launcher",
            # The id of a deleted role stays taken for weeks. This id is new whenever the account is.
            role_id=head.unique_id.apply(lambda number: f"slurm_stacks_launcher_{number}"),
            title=f"Slurm controller of {design.name}",
            description=f"Launches and ends the nodes of the cluster {design.name}",
            permissions=policies.permissions(design),
            project=design.project,
            opts=self._child_opts,
        )
        nodes_only = policies.nodes_only(design.name)
        return [
            launcher,
            self._on_project(
                "controller",
                "launcher",
                role=launcher.name,
                condition=gcp.projects.IAMMemberConditionArgs(
                    title=nodes_only.title, expression=nodes_only.expression
                ),
            ),
            gcp.compute.SubnetworkIAMMember(
                f"{self._name}-controller-subnetwork",
                subnetwork=subnetwork,
                region=design.region,
                project=design.project,
                role=policies.SUBNETWORK,
                member=head.member,
                opts=self._child_opts,
            ),
            gcp.serviceaccount.IAMMember(
                f"{self._name}-controller-nodes",
                service_account_id=self._accounts["compute"].name,
                role=policies.ACT_AS,
                member=head.member,
                opts=self._child_opts,
            ),
        ]

    def _on_project(self, account: str, part: str, **what: Any) -> pulumi.Resource:
        return gcp.projects.IAMMember(
            f"{self._name}-{account}-{part}",
            project=str(self._design.project),
            member=self._accounts[account].member,
            opts=self._child_opts,
            **what,
        )


class GcpSecrets(pulumi.ComponentResource):
    """An empty Secret Manager secret, kept in the cluster's region and nowhere else.

    Its value is never in Pulumi's state or in metadata. It is deleted with the cluster, at once and
    completely.

    Attributes:
        munge: The secret as `projects/<project>/secrets/<cluster>-munge`.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:GcpSecrets", name, None, opts)
        secret = secretmanager.Secret(
            f"{name}-munge",
            secret_id=f"{design.name}-munge",
            project=design.project,
            # The secret is in the cluster's region, so that the cluster does not depend on other regions.
            # Some organizations allow no other replication.
            replication={"user_managed": {"replicas": [{"location": str(design.region)}]}},
            deletion_protection=False,
            labels=labels(design),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.munge: pulumi.Output[str] = secret.id
        self.register_outputs({"munge": self.munge})
