"""What a platform team asks of every cluster: no open port, encrypted disks, IMDSv2, tags, a budget."""

from pulumi_policy import EnforcementLevel, PolicyPack, ResourceValidationPolicy

REQUIRED_TAGS = {"cost-center", "owner"}
EVERYBODY = {"0.0.0.0/0", "::/0"}
INSTANCE, TEMPLATE = "aws:ec2/instance:Instance", "aws:ec2/launchTemplate:LaunchTemplate"
# Google Cloud and FSx encrypt every disk.
DISKS = {
    INSTANCE: lambda props: [props.get("rootBlockDevice") or {}, *(props.get("ebsBlockDevices") or [])],
    TEMPLATE: lambda props: [each["ebs"] for each in props.get("blockDeviceMappings") or [] if "ebs" in each],
    "aws:ebs/volume:Volume": lambda props: [props],
    "aws:efs/fileSystem:FileSystem": lambda props: [props],
}


def no_open_port(args, report):
    """No port is open to everybody."""
    props, inbound = args.props, args.props.get("direction", "INGRESS") == "INGRESS"
    sources = [props.get("cidrIpv4"), props.get("cidrIpv6")] if "IngressRule" in args.resource_type else []
    sources += (props.get("sourceRanges") or []) if inbound else []
    for rule in props.get("ingress") or []:
        sources += [*(rule.get("cidrBlocks") or []), *(rule.get("ipv6CidrBlocks") or [])]
    if EVERYBODY.intersection(sources):
        report("a port is open to everybody")


def encrypted_disks(args, report):
    """Every disk of a machine, also of one that the controller launches, is encrypted."""
    disks = DISKS[args.resource_type](args.props) if args.resource_type in DISKS else []
    if any(str(disk.get("encrypted")).lower() != "true" for disk in disks):
        report("a disk is not encrypted")


def metadata_by_token(args, report):
    """The metadata service of a machine on AWS asks for a token (IMDSv2)."""
    options = args.props.get("metadataOptions") or {}
    if args.resource_type in (INSTANCE, TEMPLATE) and options.get("httpTokens") != "required":
        report("the metadata service answers without a token (IMDSv1)")


def required_tags(args, report):
    """What has tags or labels has yours."""
    key = "labels" if args.resource_type.startswith("gcp:") else "tags"
    if key in args.props and (missing := REQUIRED_TAGS - {*args.props[key]}):
        report(f"{key} without {', '.join(sorted(missing))}")


def budget_of_a_cluster(args, report):
    """A cluster has a budget for its nodes."""
    budget = args.props.get("budget") or {}
    if args.resource_type == "slurm-stacks:index:SlurmCluster" and not budget.keys() & {"maxUsd", "maxHours"}:
        report("the cluster has no budget: set budget.maxUsd or budget.maxHours")


RULES = [no_open_port, encrypted_disks, metadata_by_token, required_tags, budget_of_a_cluster]
PolicyPack(
    "cluster-policy",
    [ResourceValidationPolicy(rule.__name__.replace("_", "-"), rule.__doc__, rule) for rule in RULES],
    EnforcementLevel.MANDATORY,
)
