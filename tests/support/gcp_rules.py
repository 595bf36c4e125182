"""The security rules for a plan on Google Cloud, over its resources. Each rule names the resources that break
it."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

IAP = "35.235.240.0/20"
SSH = [{"protocol": "tcp", "ports": ["22"]}]
WIDEST = {4: 8, 6: 19}
"""Shorter prefixes count as the whole internet, which 0.0.0.0/1 and 128.0.0.0/1 together are."""
MACHINES = ("Instance", "InstanceTemplate")
LABELLED = (*MACHINES, "Disk", "Address", "Bucket", "Secret", "Image", "Filestore")
EVERYWHERE = ("roles/logging.logWriter", "roles/monitoring.metricWriter")
"""Google's roles that a machine may have in the whole project."""
NARROW = {
    "BucketIAMMember": ("roles/storage.objectViewer", "roles/storage.objectUser"),
    "SecretIamMember": ("roles/secretmanager.secretAccessor", "roles/secretmanager.secretVersionAdder"),
    "SubnetworkIAMMember": ("roles/compute.networkUser",),
    "IAMMember of an account": ("roles/iam.serviceAccountUser",),
}
"""Type of a grant on one resource -> Google's roles that it may give."""
RESERVED = re.compile("-addresses-[a-z0-9-]+-public.address>$|-address$")
"""A reserved address, in a plan and in the tests' mock."""
UNSEEN = frozenset({"Router", "RouterNat", "Account", "BucketObject", "ResourcePolicy"})
"""Types in which nothing can be wrong, or which another rule checks in their context."""


@dataclass(frozen=True)
class Plan:
    """What `./cluster plan --json` prints.

    Attributes:
        anywhere: whether the stack file allows SSH from everywhere explicitly.
    """

    resources: Sequence[Mapping[str, Any]]
    anywhere: bool = False

    def of(self, *kinds: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Return names and inputs of Google's resources of these types."""
        for resource in self.resources:
            if _kind(resource) in kinds:
                yield resource["name"], resource["inputs"]

    def grants(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Return name, type and inputs of each grant."""
        for resource in self.resources:
            if re.search("I[Aa][Mm]Member$", kind := _kind(resource)):
                on_account = resource["type"].startswith("gcp:serviceaccount/")
                yield (
                    resource["name"],
                    f"{kind} of an account" if on_account else kind,
                    resource["inputs"],
                )


Rule = Callable[[Plan], Iterator[str]]


def ingress(plan: Plan) -> Iterator[str]:
    """Nothing is open to the whole internet, except SSH if the stack file confirms it."""
    for name, rule in plan.of("Firewall"):
        if rule.get("direction") != "INGRESS" or "allows" not in rule:
            continue
        ranges, accounts = rule.get("sourceRanges") or [], rule.get("sourceServiceAccounts") or []
        if not ranges and not accounts:
            yield f"{name}: from everywhere, as nothing says from where"
        if rule.get("sourceTags") or rule.get("targetTags"):
            yield f"{name}: tags are given by whoever may change a machine"
        if not rule.get("targetServiceAccounts"):
            yield f"{name}: to every machine of the network"
        for one in ranges:
            if one.startswith("<") and one.endswith("/32"):
                continue  # an address that Google chooses and only `up` knows
            net = ipaddress.ip_network(one)
            if net.prefixlen < WIDEST[net.version] and not (plan.anywhere and rule["allows"] == SSH):
                yield f"{name}: open to {one}"
            if one == IAP and rule["allows"] != SSH:
                yield f"{name}: more than SSH through Identity-Aware Proxy"


def addresses(plan: Plan) -> Iterator[str]:
    """Nodes and machines that become images have no public address. No machine gets one automatically."""
    for name, machine in plan.of(*MACHINES):
        interfaces = machine.get("networkInterfaces") or []
        if not interfaces or not all(interface.get("subnetwork") for interface in interfaces):
            yield f"{name}: in the project's default network"
        public = [config for interface in interfaces for config in interface.get("accessConfigs") or []]
        more = [config for interface in interfaces for config in interface.get("ipv6AccessConfigs") or []]
        role = (machine.get("labels") or {}).get("slurm-stacks-role")
        if (public and role not in ("login", "controller")) or more:
            yield f"{name}: a public address"
        elif not all(RESERVED.search(str(config.get("natIp"))) for config in public):
            yield f"{name}: a public address of its own accord"


def reserved(plan: Plan) -> Iterator[str]:
    """A public address belongs to the machine where users log in, and only with SSH."""
    ssh = any(
        rule["allows"] == SSH and set(rule.get("sourceRanges") or []) - {IAP}
        for _, rule in plan.of("Firewall")
    )
    for name, address in plan.of("Address"):
        if address.get("addressType") != "INTERNAL" and not (
            ssh and re.search(r"-addresses-(controller|login-\d+)-public$", name)
        ):
            yield f"{name}: a public address"


def networks(plan: Plan) -> Iterator[str]:
    """No subnetwork is made automatically, and Google's services are reached without the internet."""
    for name, network in plan.of("Network"):
        if network.get("autoCreateSubnetworks") is not False:
            yield f"{name}: a subnetwork in every region of the world"
    for name, subnetwork in plan.of("Subnetwork"):
        if subnetwork.get("privateIpGoogleAccess") is not True:
            yield f"{name}: no private access to Google's services"


def shielded(plan: Plan) -> Iterator[str]:
    """Every machine is a Shielded VM."""
    for name, machine in plan.of(*MACHINES):
        said = machine.get("shieldedInstanceConfig") or {}
        if not (said.get("enableVtpm") is True and said.get("enableIntegrityMonitoring") is True):
            yield f"{name}: not a shielded machine"


def logins(plan: Plan) -> Iterator[str]:
    """Only IAM lets users log in: keys in metadata and serial ports do not."""
    for name, machine in plan.of(*MACHINES):
        metadata = machine.get("metadata") or {}
        if metadata.get("enable-oslogin") != "TRUE" or metadata.get("block-project-ssh-keys") != "TRUE":
            yield f"{name}: keys of the project's metadata may log in"
        if metadata.get("serial-port-enable") != "FALSE":
            yield f"{name}: an interactive serial port"
        if {"ssh-keys", "sshKeys"} & set(metadata):
            yield f"{name}: a key in the metadata"


def identities(plan: Plan) -> Iterator[str]:
    """A machine acts as the account of its role, never as the project's default account, an editor."""
    for name, machine in plan.of(*MACHINES):
        email = str((machine.get("serviceAccount") or {}).get("email") or "")
        if not email or "-compute@developer" in email:
            yield f"{name}: the project's default service account"


def buckets(plan: Plan) -> Iterator[str]:
    """A bucket cannot be made public, and its objects have no other owner."""
    for name, bucket in plan.of("Bucket"):
        if bucket.get("publicAccessPrevention") != "enforced":
            yield f"{name}: may be made public"
        if bucket.get("uniformBucketLevelAccess") is not True:
            yield f"{name}: who writes an object owns it"


PERSON = re.compile(r"-identity-user-[0-9a-f]{8}-(bucket|controller|login|compute)$")
"""The names of what members get that the stack file names (`access.users`)."""


def members(plan: Plan) -> Iterator[str]:
    """Each grant is for one service account of this cluster, or for somebody whom the stack file names."""
    for name, _, grant in plan.grants():
        if PERSON.search(name) and re.fullmatch(r"(user|group):[^@]+@example\.com", grant["member"]):
            continue
        if not re.fullmatch(r"<[\w-]+-accounts-(controller|login|compute|image)\.member>", grant["member"]):
            yield f"{name}: {grant['member']}"


def roles(plan: Plan) -> Iterator[str]:
    """Grants in the project are for logs and metrics, and the cluster's own role with a condition. Grants on
    one resource are for reading it, or for writing what belongs to the machine."""
    custom = {f"<{name}.name>" for name, _ in plan.of("IAMCustomRole")}
    for name, kind, grant in plan.grants():
        role = grant["role"]
        if kind != "IAMMember":
            if role not in NARROW.get(kind, ()):
                yield f"{name}: {role}"
        elif role not in EVERYWHERE and (role not in custom or "condition" not in grant):
            yield f"{name}: {role} in the whole project"


def reports(plan: Plan) -> Iterator[str]:
    """A machine writes nothing but boot reports into a bucket."""
    for name, kind, grant in plan.grants():
        if kind == "BucketIAMMember" and grant["role"] != "roles/storage.objectViewer":
            expression = (grant.get("condition") or {}).get("expression", "")
            if "/objects/boot/" not in expression or "||" in expression:
                yield f"{name}: writes anywhere in {grant['bucket']}"


def acting(plan: Plan) -> Iterator[str]:
    """Only the controller acts as another account, the nodes', and only it has the munge key.

    Who may log in to a machine acts as its account, so OS Login asks.
    """
    for name, _, grant in plan.grants():
        if (person := PERSON.search(name)) and person[1] != "bucket":
            if not grant["serviceAccountId"].endswith(f"-accounts-{person[1]}.name>"):
                yield f"{name}: acts as {grant['serviceAccountId']}"
            continue
        by_controller = grant["member"].endswith("-accounts-controller.member>")
        if grant["role"] == "roles/iam.serviceAccountUser":
            of_nodes = str(grant.get("serviceAccountId", "")).endswith("-accounts-compute.name>")
            if not by_controller or not of_nodes:
                yield f"{name}: acts as {grant.get('serviceAccountId', 'every account')}"
        if grant["role"].startswith("roles/secretmanager.") and not by_controller:
            yield f"{name}: has the key ({grant['role']})"


def permissions(plan: Plan) -> Iterator[str]:
    """The cluster's own role launches and ends machines, and changes no policies, accounts or networks."""
    for name, role in plan.of("IAMCustomRole"):
        for permission in role["permissions"]:
            if not re.fullmatch(
                r"compute\.(instances|disks|instanceTemplates|images|resourcePolicies|projects|regions|"
                r"zoneOperations)\.[A-Za-z]+",
                permission,
            ) or permission.endswith("IamPolicy"):
                yield f"{name}: {permission}"


def secrets(plan: Plan) -> Iterator[str]:
    """Neither a plan nor, therefore, the state has anything secret."""
    key = re.compile(r'BEGIN [A-Z ]*PRIVATE KEY|private_key\\*"|AIza[\w-]{35}')
    for resource in plan.resources:
        if key.search(json.dumps(resource["inputs"])):
            yield f"{resource['name']}: a key in clear"


def labelled(plan: Plan) -> Iterator[str]:
    """Resources that cost money and take labels have the cluster's, by which `down` finds them."""
    said = {
        name: (found.get("labels") or {}).get("slurm-stacks-cluster") for name, found in plan.of(*LABELLED)
    }
    cluster = next(filter(None, said.values()), None)
    for name, label in said.items():
        if label is None or label != cluster:
            yield f"{name}: no label of the cluster's"


def seen(plan: Plan) -> Iterator[str]:
    """A rule knows every type of Google that occurs, so somebody must think about a new one first."""
    known = {*LABELLED, "Firewall", "Network", "Subnetwork", "IAMCustomRole", "IAMMember", *NARROW, *UNSEEN}
    for resource in plan.resources:
        if resource["type"].startswith("gcp:") and _kind(resource) not in known:
            yield f"{resource['name']}: no rule knows {resource['type']}"


MACHINE_RULES: tuple[Rule, ...] = (addresses, shielded, logins, identities, labelled)
RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        ingress, reserved, networks, *MACHINE_RULES, buckets, members, roles, reports, acting, permissions,
        secrets, seen,
    )
}  # fmt: skip


def weaknesses(planned: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the rules about machines find. It also works for the resources of one component."""
    plan = Plan(planned)
    return [finding for rule in MACHINE_RULES for finding in rule(plan)]


def _kind(resource: Mapping[str, Any]) -> str:
    """Return a resource's kind: a Filestore instance is not a machine."""
    kind = str(resource["type"])
    if not kind.startswith("gcp:"):
        return ""
    short = kind.rpartition(":")[2]
    return "Filestore" if kind.startswith("gcp:filestore/") else short
