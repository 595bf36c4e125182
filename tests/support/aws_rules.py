"""The security rules for a plan on AWS, over its resources. Each rule names the resources that break it."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SSH = 22
WIDEST = {4: 8, 6: 19}
"""Shorter prefixes count as the whole internet, which 0.0.0.0/1 and 128.0.0.0/1 together are."""
NO_NARROWER = re.compile(
    r"ecr:GetAuthorizationToken|ecs:DiscoverPollEndpoint|batch:(Describe|List)\w+|fsx:Describe\w+|ec2:Describe\w+|ssmmessages:(Create|Open)(Control|Data)Channel|ssm:UpdateInstanceInformation|"
    r"ec2messages:\w+|ssm:(DescribeAssociation|DescribeDocument|GetDeployablePatchSnapshotForInstance|GetDocument|"
    r"GetManifest|ListAssociations|ListInstanceAssociations|PutComplianceItems|PutConfigurePackageResult|"
    r"PutInventory|UpdateAssociationStatus|UpdateInstanceAssociationStatus)"
)
"""Actions for which the service authorization reference has no resource, or only the caller, and the actions
that Image Builder documents for its machines without a narrower one (AmazonSSMManagedInstanceCore)."""
LINKED_BUCKET = "-job-steps-policy/LinkedBucket"
OF_FSX = {"s3:Get*", "s3:List*"}
"""What FSx asks of whoever links a file system to a bucket: its refusal names no single actions."""
BOUND = {"cloudwatch:PutMetricData": "cloudwatch:namespace"}
"""Actions without a resource -> the condition key that must limit them."""
SHARED = re.compile(r"arn:[^:*]+:ec2:[^:*]+:\*:capacity-reservation/(cr-\w+|\*)")
"""ARNs of reservations that other accounts may share: neither an id nor a group tells the owner."""
SERVICES = {"ec2", "ecs-tasks", "events", "states"}
"""Services that may take our roles: machines, the tasks of Batch's jobs, rules and state machines."""
KINDS_OF_EC2 = re.compile(
    r":(instance|volume|network-interface|launch-template|placement-group|image|snapshot|subnet|key-pair|"
    r"security-group|spot-instances-request)/\*$"
)
UNSEEN = frozenset(
    {
        "Vpc", "InternetGateway", "NatGateway", "RouteTable", "RouteTableAssociation", "Route", "VpcEndpoint",
        "InstanceProfile", "PlacementGroup", "VolumeAttachment", "NetworkInterface", "MountTarget",
        "SecurityGroupEgressRule", "BucketObjectv2", "DataRepositoryAssociation", "Budget", "Component",
        "Image", "Group", "Resource", "ComputeEnvironment", "JobQueue", "JobDefinition", "EventTarget",
        "EventRule", "StateMachine", "BucketNotification",
        # These are always encrypted, by default with AWS's own keys.
        "LogGroup", "Secret", "LustreFileSystem",
    }
)  # fmt: skip
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
        """Return names and inputs of AWS's resources of these types."""
        for resource in self.resources:
            if resource["type"].startswith("aws:") and resource["type"].rpartition(":")[2] in kinds:
                yield resource["name"], resource["inputs"]


Rule = Callable[[Plan], Iterator[str]]


def ingress(plan: Plan) -> Iterator[str]:
    """Nothing is open to the whole internet, except SSH if the stack file confirms it."""
    for name, rule in plan.of("SecurityGroupIngressRule"):
        for key in ("cidrIpv4", "cidrIpv6"):
            if key in rule and (net := ipaddress.ip_network(rule[key])).prefixlen < WIDEST[net.version]:
                ports = (rule.get("ipProtocol"), rule.get("fromPort"), rule.get("toPort"))
                if not plan.anywhere or ports != ("tcp", SSH, SSH):
                    yield f"{name}: open to {rule[key]}"
    for name, group in plan.of("SecurityGroup", "DefaultSecurityGroup"):
        if group.get("ingress") or group.get("egress"):
            yield f"{name}: rules inside a group escape this rule"


def metadata(plan: Plan) -> Iterator[str]:
    """Instance metadata requires a token, and its answers do not leave the machine."""
    for name, machine in plan.of("Instance", "LaunchTemplate"):
        said = machine.get("metadataOptions") or {}
        if said.get("httpTokens") != "required" or said.get("httpPutResponseHopLimit") != 1:
            yield f"{name}: metadata without a token, or from further away"
    for name, builder in plan.of("InfrastructureConfiguration"):
        said = builder.get("instanceMetadataOptions") or {}
        if said.get("httpTokens") != "required" or said.get("httpPutResponseHopLimit") != 1:
            yield f"{name}: metadata without a token, or from further away"


def addresses(plan: Plan) -> Iterator[str]:
    """Compute nodes have no public address, and no machine gets one automatically."""
    for name, subnet in plan.of("Subnet"):
        if subnet.get("mapPublicIpOnLaunch"):
            yield f"{name}: gives everything a public address"
    for name, machine in plan.of("Instance"):
        if machine.get("associatePublicIpAddress"):
            yield f"{name}: a public address of its own accord"
    for name, template in plan.of("LaunchTemplate"):
        interfaces = template.get("networkInterfaces") or []
        said = [interface.get("associatePublicIpAddress") for interface in interfaces]
        # With several interfaces EC2 gives no public address, and refuses this setting.
        if said != ["false"] and not (len(said) > 1 and set(said) == {None}):
            yield f"{name}: a public address"
        if template.get("vpcSecurityGroupIds"):
            yield f"{name}: security groups beside interfaces are refused"


def subnets(plan: Plan) -> Iterator[str]:
    """Nodes start in private subnets, which have no route to an internet gateway and no public name."""
    open_tables = {route["routeTableId"] for _, route in plan.of("Route") if "gatewayId" in route}
    public = {
        one["subnetId"] for _, one in plan.of("RouteTableAssociation") if one["routeTableId"] in open_tables
    }
    for name, found in plan.of("BucketObjectv2"):
        # Machines that become images launch nothing, and have no list of subnets.
        if not name.endswith("-bundle-settings"):
            continue
        settings = json.loads(found["content"])
        public.add(settings["design"]["network"]["public_subnet"])
        of_nodes = settings["site"]["cloud"]["subnets"]
        for zone, subnet in of_nodes.items():
            if subnet in public:
                yield f"{name}: nodes in {zone} start in the public subnet {subnet}"


def tables(plan: Plan) -> Iterator[str]:
    """A table is encrypted with AWS's key or the user's own."""
    for name, table in plan.of("Table"):
        if (table.get("serverSideEncryption") or {}).get("enabled") is not True:
            yield f"{name}: not encrypted"


def encryption(plan: Plan) -> Iterator[str]:
    """Every disk, file system and bucket is encrypted."""
    for name, machine in plan.of("Instance"):
        disks = [machine.get("rootBlockDevice") or {}, *(machine.get("ebsBlockDevices") or [])]
        if not all(disk.get("encrypted") is True for disk in disks):
            yield f"{name}: a disk is not encrypted"
    for name, template in plan.of("LaunchTemplate"):
        mappings = template.get("blockDeviceMappings") or [{}]
        if not all((mapping.get("ebs") or {}).get("encrypted") == "true" for mapping in mappings):
            yield f"{name}: a disk is not encrypted"
    for name, recipe in plan.of("ImageRecipe"):
        parts = recipe.get("blockDeviceMappings") or [{}]
        if not all((part.get("ebs") or {}).get("encrypted") == "true" for part in parts):
            yield f"{name}: the image is not encrypted"
    for name, volume in plan.of("Volume", "FileSystem"):
        if volume.get("encrypted") is not True:
            yield f"{name}: not encrypted"
    kept = [one for _, one in plan.of("BucketServerSideEncryptionConfiguration")]
    for name, _ in plan.of("Bucket"):
        rules = [rule for one in kept if one["bucket"] == f"<{name}.id>" for rule in one.get("rules") or []]
        if not any("sseAlgorithm" in rule.get("applyServerSideEncryptionByDefault", {}) for rule in rules):
            yield f"{name}: not encrypted"


def images(plan: Plan) -> Iterator[str]:
    """A machine that becomes an image is private and keeps no login. Only this account has the image."""
    public = {f"<{name}.id>" for name, _ in plan.of("Subnet") if name.endswith("-public")}
    for name, builder in plan.of("InfrastructureConfiguration"):
        if builder.get("subnetId") in public | {None} or not builder.get("securityGroupIds"):
            yield f"{name}: in a public subnet, or in a default network"
        if builder.get("keyPair") or builder.get("terminateInstanceOnFailure") is not True:
            yield f"{name}: somebody may log in, or it stays after a failure"
    for name, one in plan.of("DistributionConfiguration"):
        for distribution in one["distributions"]:
            ami = distribution.get("amiDistributionConfiguration") or {}
            if ami.get("launchPermission") or ami.get("targetAccountIds"):
                yield f"{name}: an image for other accounts"


def repositories(plan: Plan) -> Iterator[str]:
    """Pushed images are scanned and encrypted, and a tag cannot be moved."""
    for name, one in plan.of("Repository"):
        scanned = (one.get("imageScanningConfiguration") or {}).get("scanOnPush") is True
        fixed = one.get("imageTagMutability") == "IMMUTABLE"
        if not (scanned and fixed and one.get("encryptionConfigurations")):
            yield f"{name}: not scanned, not encrypted, or its tags may move"


def buckets(plan: Plan) -> Iterator[str]:
    """A bucket cannot be made public, its objects have no other owner, and requests must be encrypted."""
    for name, _ in plan.of("Bucket"):
        bucket_id = f"<{name}.id>"
        blocks = [one for _, one in plan.of("BucketPublicAccessBlock") if one["bucket"] == bucket_id]
        words = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
        if not any(all(one.get(word) is True for word in words) for one in blocks):
            yield f"{name}: may be made public"
        owners = [one["rule"] for _, one in plan.of("BucketOwnershipControls") if one["bucket"] == bucket_id]
        if [one.get("objectOwnership") for one in owners] != ["BucketOwnerEnforced"]:
            yield f"{name}: who writes an object owns it"
        policies = [
            json.loads(one["policy"]) for _, one in plan.of("BucketPolicy") if one["bucket"] == bucket_id
        ]
        clear = {"Bool": {"aws:SecureTransport": "false"}}
        denied = [
            s
            for p in policies
            for s in p["Statement"]
            if s["Effect"] == "Deny" and s.get("Condition") == clear
        ]
        if not any(s["Principal"] == "*" and s["Action"] == "s3:*" for s in denied):
            yield f"{name}: speaks in clear"


def actions(plan: Plan) -> Iterator[str]:
    """Allowed actions have no wildcard, and `NotAction` and the like do not occur."""
    for name, statement in allowed_statements(plan):
        if odd := {"NotAction", "NotResource", "NotPrincipal"} & set(statement):
            yield f"{name}: {', '.join(sorted(odd))}"
        for action in several(statement.get("Action", [])):
            if re.search(r"[*?]", action) and not (name.endswith(LINKED_BUCKET) and action in OF_FSX):
                yield f"{name}: Action {action}"


def resources(plan: Plan) -> Iterator[str]:
    """`Resource: "*"` occurs only if AWS takes no other, and a whole kind only with a condition."""
    for name, statement in allowed_statements(plan):
        allowed, conditions = several(statement.get("Action", [])), statement.get("Condition", {})
        keys = {key for condition in conditions.values() for key in condition}
        for resource in several(statement.get("Resource", [])):
            if resource == "*":
                free = [a for a in allowed if not NO_NARROWER.fullmatch(a) and BOUND.get(a) not in keys]
                if free:
                    yield f"{name}: {', '.join(free)} on everything"
            elif KINDS_OF_EC2.search(resource) and not keys:
                yield f"{name}: every {resource.rpartition(':')[2]}"
            elif SHARED.fullmatch(resource):
                continue
            elif re.search(r"[*?]", resource.rpartition(":")[0]):
                yield f"{name}: {resource} is in any account, or of any service"


def trust(plan: Plan) -> Iterator[str]:
    """Only machines, jobs and services may take roles. No role has a managed policy: they allow too much."""
    for name, role in plan.of("Role"):
        for statement in json.loads(role["assumeRolePolicy"])["Statement"]:
            if statement.get("Principal") not in [{"Service": f"{one}.amazonaws.com"} for one in SERVICES]:
                yield f"{name}: may be taken by {statement.get('Principal')}"
        if role.get("managedPolicyArns") or role.get("inlinePolicies"):
            yield f"{name}: policies that no rule reads"
    for name, _ in plan.of("RolePolicyAttachment"):
        yield f"{name}: a managed policy"


def keys(plan: Plan) -> Iterator[str]:
    """Only the controller reads the munge key: any process of a machine can act with the machine's role."""
    for name, statement in allowed_statements(plan):
        secret = [a for a in several(statement.get("Action", [])) if a.startswith("secretsmanager:")]
        if secret and "-controller" not in name:
            yield f"{name}: {', '.join(secret)}"


def secrets(plan: Plan) -> Iterator[str]:
    """Neither a plan nor, therefore, the state has anything secret."""
    for resource in plan.resources:
        if re.search(r"BEGIN [A-Z ]*PRIVATE KEY|AKIA[A-Z0-9]{16}", json.dumps(resource["inputs"])):
            yield f"{resource['name']}: a key in clear"


def seen(plan: Plan) -> Iterator[str]:
    """A rule knows every type of AWS that occurs, so somebody must think about a new one first."""
    known = {
        "SecurityGroupIngressRule", "SecurityGroup", "DefaultSecurityGroup", "Instance", "LaunchTemplate",
        "Subnet", "Eip", "Volume", "FileSystem", "Bucket", "BucketServerSideEncryptionConfiguration",
        "BucketPublicAccessBlock", "BucketOwnershipControls", "BucketPolicy", "Role", "RolePolicy",
        "RolePolicyAttachment", "InfrastructureConfiguration", "ImageRecipe", "DistributionConfiguration",
        "Repository", "Table",
    }  # fmt: skip
    for resource in plan.resources:
        kind = resource["type"].rpartition(":")[2]
        if resource["type"].startswith("aws:") and kind not in known | UNSEEN:
            yield f"{resource['name']}: no rule knows {resource['type']}"


def elastic_addresses(plan: Plan) -> Iterator[str]:
    """A public address belongs to a NAT gateway, or with SSH to the machine where users log in."""
    gateways = {gateway.get("allocationId") for _, gateway in plan.of("NatGateway")}
    ssh = any(rule.get("fromPort") == SSH and ("cidrIpv4" in rule or "cidrIpv6" in rule)
              for _, rule in plan.of("SecurityGroupIngressRule"))  # fmt: skip
    for name, address in plan.of("Eip"):
        if address.get("instance"):
            yield f"{name}: is a machine's"
        interface = str(address.get("networkInterface", ""))
        if interface and not (ssh and re.search(r"-addresses-(controller|login-\d+)\.id>$", interface)):
            yield f"{name}: a public address for {interface}"
        if not interface and gateways.isdisjoint({f"<{name}.id>", f"<{name}.allocationId>"}):
            yield f"{name}: is nobody's"


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        ingress, metadata, addresses, elastic_addresses, subnets, encryption, buckets, actions, resources,
        trust, keys, secrets, seen, images, repositories, tables,
    )
}  # fmt: skip


def weaknesses(planned: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the rules find."""
    plan = Plan(planned)
    return [finding for rule in RULES.values() for finding in rule(plan)]


def allowed_statements(plan: Plan) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, found in plan.of("RolePolicy", "BucketPolicy", "Policy"):
        for statement in json.loads(found["policy"])["Statement"]:
            if statement["Effect"] == "Allow":
                yield f"{name}/{statement.get('Sid')}", statement


def several(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
