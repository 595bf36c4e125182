"""The machines have exactly these roles, and each role may do exactly what its work needs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from botocore.session import Session

from infra.aws import policies
from infra.aws.identity import (
    AccessTargets,
    AwsIdentity,
    AwsSecrets,
    check_sizes,
    physical_name,
    policy_size,
)
from infra.aws.policies import SSM_MANAGED, SSM_MESSAGES, SSM_SESSION
from node.design.containers import Containers, Package
from node.design.model import AwsPartition, AwsSettings, ClusterDesign, Hook
from tests.support import sentences
from tests.support.aws_mocks import (
    ACCOUNT,
    CONTROLLER,
    CPU,
    GPU,
    LOGIN,
    SCOPE,
    aws_design,
    declare,
    ssh_design,
)
from tests.support.iam import allowed
from tests.support.recorder import Recorder, counts, unknown

ROLE = "aws:iam/role:Role"
EC2 = "arn:aws:ec2:eu-west-1:123456789012:"
GIVEN = {"aws:RequestTag/slurm-stacks:cluster": "c", "ec2:LaunchTemplate": f"{EC2}launch-template/lt-1"}
NAMED = {"ec2:LaunchTemplate": f"{EC2}launch-template/lt-1", "ec2:IsLaunchTemplateResource": "true"}
OURS = {"aws:ResourceTag/slurm-stacks:cluster": "c"}
VARIANTS = {
    "ssm": aws_design(),
    "ssh": ssh_design(login=True),
    "spot": aws_design(partitions=(dataclasses.replace(CPU, spot=True), GPU)),
    "reserved": aws_design(partitions=(dataclasses.replace(CPU, reservation="cr-1"),)),
    "grouped": aws_design(partitions=(dataclasses.replace(CPU, reservations=("cr-1", "cr-2")),)),
    "own": aws_design(
        aws=AwsSettings(kms_key=f"arn:aws:kms:eu-west-1:{ACCOUNT}:key/12345678-1234-1234-1234-123456789012"),
        partitions=(CPU, dataclasses.replace(GPU, aws=AwsPartition(efa=1, placement_group="lab"))),
    ),
    "hooks": aws_design(
        hooks=(Hook("compute", "s3://own/hooks/a.sh"), Hook("all", "hooks/b.sh")),
        containers=Containers("pyxis", (Package("s3://own/pyxis.deb", "0" * 64),)),
    ),
}
DOCUMENTS = [
    pytest.param(document(SCOPE, design), id=f"{name}-{document.__name__}")
    for name, design in VARIANTS.items()
    for document in (policies.controller, policies.login, policies.compute)
]


def identity(
    design: ClusterDesign, *, preview: bool = False, seen: list[AwsIdentity] | None = None
) -> Recorder:
    targets = AccessTargets(
        SCOPE.bucket, SCOPE.secret, SCOPE.log_group, list(SCOPE.subnets), list(SCOPE.groups)
    )

    def program() -> None:
        built = AwsIdentity("i", design, targets)
        if seen is not None:
            seen.append(built)

    return declare(program, preview=preview)


def may(
    action: str, resource: str, *, design: ClusterDesign | None = None, role: str = "controller", **kw: Any
) -> bool:
    document = getattr(policies, role)(SCOPE, design or VARIANTS["ssm"])
    return allowed(document, action, resource, kw.get("context"))


# --- resources --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preview", [False, True])
@pytest.mark.parametrize(("variant", "roles"), [("ssm", 2), ("ssh", 3)])
def test_an_identity_is_exactly_these_resources(variant: str, roles: int, preview: bool) -> None:
    made = identity(VARIANTS[variant], preview=preview)
    assert counts(made) == {
        "slurm-stacks:index:AwsIdentity": 1,
        ROLE: roles,
        "aws:iam/instanceProfile:InstanceProfile": roles,
        "aws:iam/rolePolicy:RolePolicy": roles,
    }
    assert {parent for name, parent in made.parents().items() if name != "i"} == {"i"}
    assert made.closed.count("i") == 1


def test_the_roles_have_the_policies_of_their_kind() -> None:
    seen: list[AwsIdentity] = []
    design = VARIANTS["ssh"]
    made = identity(design, seen=seen)
    known = dataclasses.replace(SCOPE, compute_role="arn:i-compute")
    for kind in ("controller", "login", "compute"):
        policy = made.inputs(f"i-{kind}-policy")
        assert policy["role"] == f"i-{kind}-id"
        assert json.loads(policy["policy"]) == json.loads(json.dumps(getattr(policies, kind)(known, design)))
        assert json.loads(made.inputs(f"i-{kind}")["assumeRolePolicy"]) == policies.trust(str(design.region))
        assert made.inputs(f"i-{kind}-profile")["role"] == physical_name(design, kind)
    assert set(seen[0].profiles) == set(seen[0].roles) == {"controller", "login", "compute"}
    assert len(seen[0].grants) == 6, "a profile and a policy each"


def test_in_a_preview_the_policies_are_unknown() -> None:
    made = identity(VARIANTS["ssm"], preview=True)
    assert "policy" in unknown(made, "i-controller-policy")
    assert made.inputs("i-controller")["name"] == physical_name(VARIANTS["ssm"], "controller")


def test_names_fit_and_tell_regions_apart() -> None:
    longest = aws_design(name="c" * 40)
    names = {physical_name(longest, kind) for kind in ("controller", "login", "compute")}
    assert all(len(name) <= 64 for name in names)
    assert len(names) == 3
    elsewhere = aws_design(region="us-east-1")
    assert physical_name(elsewhere, "compute") != physical_name(aws_design(), "compute")


@pytest.mark.parametrize(
    ("region", "service"),
    [
        ("eu-west-1", "ec2.amazonaws.com"),
        ("us-gov-west-1", "ec2.amazonaws.com"),
        ("cn-north-1", "ec2.amazonaws.com.cn"),
        ("cn-northwest-1", "ec2.amazonaws.com.cn"),
    ],
)
def test_only_machines_take_the_roles(region: str, service: str) -> None:
    (statement,) = policies.trust(region)["Statement"]
    assert (statement["Principal"], statement["Action"]) == ({"Service": service}, "sts:AssumeRole")


def test_the_controller_passes_the_role_by_either_name_of_ec2_in_china() -> None:
    scope = dataclasses.replace(SCOPE, partition="aws-cn", region="cn-north-1")
    document = policies.controller(scope, VARIANTS["ssm"])
    for service in ("ec2.amazonaws.com", "ec2.amazonaws.com.cn"):
        assert allowed(document, "iam:PassRole", scope.compute_role, {"iam:PassedToService": service})
    assert not allowed(
        policies.controller(SCOPE, VARIANTS["ssm"]),
        "iam:PassRole",
        SCOPE.compute_role,
        {"iam:PassedToService": "ec2.amazonaws.com.cn"},
    )


# --- rules over every document ----------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_action_has_a_wildcard(document: policies.Document) -> None:
    for statement in document["Statement"]:
        assert not any("*" in action for action in statement["Action"])
        assert "NotAction" not in statement
        assert "NotResource" not in statement


@pytest.mark.parametrize("document", DOCUMENTS)
def test_everything_is_a_resource_only_where_aws_takes_no_other(document: policies.Document) -> None:
    wide = {action for s in document["Statement"] if s["Resource"] in ("*", ["*"]) for action in s["Action"]}
    inside = [r for s in document["Statement"] if isinstance(s["Resource"], list) for r in s["Resource"]]
    assert "*" not in inside
    metrics = "cloudwatch:PutMetricData"
    assert all(a.startswith("ec2:Describe") or a in SSM_SESSION or a == metrics for a in wide)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_policy_fits_into_its_role(document: policies.Document) -> None:
    sids = [statement["Sid"] for statement in document["Statement"]]
    assert len(set(sids)) == len(sids)
    assert all(sid.isalnum() for sid in sids)
    assert len(json.dumps(document, separators=(",", ":"))) < 10_240, "IAM's limit of a role's own policies"


def reserving(partitions: int) -> ClusterDesign:
    """Return a design whose partitions have two reservations each."""
    design = aws_design()
    (first, *_) = design.partitions
    return dataclasses.replace(
        design,
        partitions=tuple(
            dataclasses.replace(
                first, name=f"p{number}", reservations=(f"cr-{2 * number:017x}", f"cr-{2 * number + 1:017x}")
            )
            for number in range(partitions)
        ),
    )


def test_a_policy_that_iam_would_refuse_is_refused_before_anything_is_made() -> None:
    check_sizes(reserving(10), 3, 2)
    with sentences.raises("aws.policy-too-long", "slurm-stacks:cluster.partitions", "controller", "10,240"):
        check_sizes(reserving(40), 3, 2)


def test_the_size_that_is_checked_is_at_least_that_of_the_policy() -> None:
    for design in VARIANTS.values():
        known = json.dumps(policies.controller(SCOPE, design), separators=(",", ":"))
        assert len(known) <= policy_size("controller", design, len(SCOPE.subnets), len(SCOPE.groups))


# --- the head ---------------------------------------------------------------------------------------------


def launch(**changes: Any) -> dict[str, bool]:
    """EC2 checks each resource of a launch by itself, and all must be allowed."""
    subnet, template, given = (
        changes.get("subnet", "subnet-1"),
        changes.get("template", OURS),
        changes.get("given", GIVEN),
    )
    wanted = {
        f"{EC2}launch-template/lt-1": template,
        f"{EC2}subnet/{subnet}": {},
        f"{EC2}security-group/{changes.get('group', 'sg-1')}": {},
        "arn:aws:ec2:eu-west-1::image/ami-1": changes.get("image", NAMED),
        f"{EC2}placement-group/c-gpu": changes.get("placement", OURS),
        **{f"{EC2}{kind}/*": given for kind in ("instance", "volume", "network-interface")},
    }
    return {r: may("ec2:RunInstances", r, context=context) for r, context in wanted.items()}


def refused(answers: dict[str, bool]) -> set[str]:
    return {resource.split(":")[5].partition("/")[0] for resource, ok in answers.items() if not ok}


def test_the_head_launches_this_clusters_nodes() -> None:
    assert refused(launch()) == set()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"template": {"aws:ResourceTag/slurm-stacks:cluster": "other"}}, {"launch-template"}),
        ({"template": {}}, {"launch-template"}),
        ({"subnet": "subnet-9"}, {"subnet"}),
        # The call names another image than the template's.
        ({"image": {**NAMED, "ec2:IsLaunchTemplateResource": "false"}}, {"image"}),
        ({"image": {}}, {"image"}),
        ({"group": "sg-9"}, {"security-group"}),
        ({"placement": {"aws:ResourceTag/slurm-stacks:cluster": "other"}}, {"placement-group"}),
        (
            {"given": {**GIVEN, "aws:RequestTag/slurm-stacks:cluster": "other"}},
            {"instance", "volume", "network-interface"},
        ),
        # Without a template a call could name any image, any role that may be passed, and any size.
        (
            {"given": {"aws:RequestTag/slurm-stacks:cluster": "c"}},
            {"instance", "volume", "network-interface"},
        ),
    ],
)
def test_the_head_launches_nothing_else(changes: dict[str, Any], what: set[str]) -> None:
    assert refused(launch(**changes)) == what


def test_the_head_ends_this_clusters_nodes_only() -> None:
    node = {"aws:ResourceTag/slurm-stacks:cluster": "c", "aws:ResourceTag/slurm-stacks:role": "compute"}
    machine = f"{EC2}instance/i-1"
    assert may("ec2:TerminateInstances", machine, context=node)
    for other in ({}, {**node, "aws:ResourceTag/slurm-stacks:cluster": "d"}, OURS):
        assert not may("ec2:TerminateInstances", machine, context=other)
    itself = {**node, "aws:ResourceTag/slurm-stacks:role": "controller"}
    assert not may("ec2:TerminateInstances", machine, context=itself)


def test_the_head_tags_only_what_it_is_launching() -> None:
    launching = {"aws:RequestTag/slurm-stacks:cluster": "c", "ec2:CreateAction": "RunInstances"}
    assert may("ec2:CreateTags", f"{EC2}instance/i-1", context=launching)
    for other in (
        {"aws:RequestTag/slurm-stacks:cluster": "c"},
        {**launching, "ec2:CreateAction": "CreateVolume"},
        {**launching, "aws:RequestTag/slurm-stacks:cluster": "d"},
    ):
        assert not may("ec2:CreateTags", f"{EC2}instance/i-1", context=other)
    assert not may("ec2:CreateTags", f"{EC2}launch-template/lt-9", context=launching)


def test_the_head_passes_the_nodes_role_to_ec2_only() -> None:
    service = {"iam:PassedToService": "ec2.amazonaws.com"}
    assert may("iam:PassRole", SCOPE.compute_role, context=service)
    assert not may(
        "iam:PassRole", SCOPE.compute_role, context={"iam:PassedToService": "lambda.amazonaws.com"}
    )
    assert not may("iam:PassRole", "arn:aws:iam::123456789012:role/c-controller", context=service)


def test_spot_requests_only_where_a_partition_is_spot() -> None:
    request = f"{EC2}spot-instances-request/*"
    tagging = {"aws:RequestTag/slurm-stacks:cluster": "c", "ec2:CreateAction": "RunInstances"}
    assert may("ec2:CreateTags", request, design=VARIANTS["spot"], context=tagging)
    assert not may("ec2:CreateTags", request, context=tagging)
    for action, resource in (
        ("ec2:RunInstances", request),
        ("ec2:DescribeSpotInstanceRequests", "*"),
    ):
        assert may(action, resource, design=VARIANTS["spot"], context=GIVEN)
        assert not may(action, resource, context=GIVEN)


def test_reservations_of_partitions_only() -> None:
    own, other = f"{EC2}capacity-reservation/cr-1", f"{EC2}capacity-reservation/cr-2"
    assert may("ec2:RunInstances", own, design=VARIANTS["reserved"])
    assert not may("ec2:RunInstances", other, design=VARIANTS["reserved"])
    shared = "arn:aws:ec2:eu-west-1:999999999999:capacity-reservation/cr-1"
    assert may("ec2:RunInstances", shared, design=VARIANTS["reserved"]), "its ARN has its owner's account"
    assert not may("ec2:RunInstances", own)
    group = "arn:aws:resource-groups:eu-west-1:123456789012:group/G"
    grouped = aws_design(partitions=(dataclasses.replace(CPU, reservation=group),))
    for used in (group, other):
        assert may("ec2:RunInstances", used, design=grouped), "its members change"
    assert not may("ec2:RunInstances", group.replace("/G", "/H"), design=grouped)


def test_a_group_of_the_stacks_and_its_members_only() -> None:
    """AWS adds an id to the ARNs of newer groups (Resource Groups' GroupArnV2)."""
    shared = "arn:aws:ec2:eu-west-1:999999999999:capacity-reservation/cr-2"
    grouped = aws_design(partitions=(dataclasses.replace(CPU, reservations=("cr-1", shared)),))
    group = f"arn:aws:resource-groups:eu-west-1:{ACCOUNT}:group/c-cpu"
    for used in (f"{EC2}capacity-reservation/cr-1", shared, group, f"{group}/{'a' * 26}"):
        assert may("ec2:RunInstances", used, design=grouped), used
        assert not may("ec2:RunInstances", used), used
    others = ("capacity-reservation/cr-2", "capacity-reservation/cr-3")
    for other in (*(f"{EC2}{one}" for one in others), f"{group}-2", group.replace("c-cpu", "d-cpu")):
        assert not may("ec2:RunInstances", other, design=grouped), other


def test_the_key_pair_of_the_stack_only() -> None:
    assert may("ec2:RunInstances", f"{EC2}key-pair/key", design=VARIANTS["ssh"])
    assert not may("ec2:RunInstances", f"{EC2}key-pair/other", design=VARIANTS["ssh"])
    assert not may("ec2:RunInstances", f"{EC2}key-pair/key")


# --- everybody --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "foreign"),
    [("image", "image-compute"), ("image-compute", "image-compute-efa"), ("login", "login-0")],
)
def test_a_partition_may_not_have_a_name_that_opens_others_reports(name: str, foreign: str) -> None:
    """The stack file is refused for these names. With any other, nodes write their own reports only."""
    design = VARIANTS["ssh"]
    forbidden = dataclasses.replace(design.partitions[0], name=name)
    report = f"{SCOPE.bucket}/boot/{foreign}.json"
    named = dataclasses.replace(design, partitions=(forbidden,))
    assert may("s3:PutObject", report, role="compute", design=named), "which is why"
    for fine in (f"{name}s", f"my-{name}", "x"):
        other = dataclasses.replace(design, partitions=(dataclasses.replace(forbidden, name=fine),))
        for host in (foreign, "controller", "login-0", "image-compute"):
            report = f"{SCOPE.bucket}/boot/{host}.json"
            assert not may("s3:PutObject", report, role="compute", design=other), (fine, host)


@pytest.mark.parametrize(
    ("role", "own", "foreign"),
    [
        ("controller", "controller", "cpu-0"),
        ("login", "login-0", "controller"),
        ("compute", "gpu-3", "controller"),
    ],
)
def test_a_machine_writes_the_boot_reports_of_its_kind_only(role: str, own: str, foreign: str) -> None:
    design = VARIANTS["ssh"]
    store = SCOPE.bucket
    assert may("s3:PutObject", f"{store}/boot/{own}.json", role=role, design=design)
    for key in (f"boot/{foreign}.json", "current.json", "code/x.zip", "settings/x.json", "loader.py"):
        assert not may("s3:PutObject", f"{store}/{key}", role=role, design=design)
    for key in ("loader.py", "current.json", "code/x.zip", "settings/x.json"):
        assert may("s3:GetObject", f"{store}/{key}", role=role, design=design)
    for prefix in ("boot/", "", "code/"):
        context = {"s3:prefix": prefix}
        assert not may("s3:ListBucket", store, role=role, design=design, context=context), (
            "nobody reads these"
        )
    for report in ("gpu-3", "login-0", "controller"):
        assert not may("s3:GetObject", f"{store}/boot/{report}.json", role=role, design=design)
    assert not may("s3:GetObject", "arn:aws:s3:::other/loader.py", role=role, design=design)


@pytest.mark.parametrize("role", ["controller", "login", "compute"])
def test_only_the_head_reads_and_writes_the_munge_key(role: str) -> None:
    """Every process of a machine can act with the machine's role."""
    for action in ("secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"):
        assert may(action, SCOPE.secret, role=role) == (role == "controller")
    assert not may("secretsmanager:GetSecretValue", SCOPE.secret.replace("c-munge", "d-munge"), role=role)


@pytest.mark.parametrize("role", ["login", "compute"])
def test_only_the_head_deals_with_ec2(role: str) -> None:
    document = getattr(policies, role)(SCOPE, VARIANTS["ssh"])
    actions = {action for statement in document["Statement"] for action in statement["Action"]}
    services = {action.partition(":")[0] for action in actions}
    assert services == {"s3", "logs", "cloudwatch"}


@pytest.mark.parametrize("role", ["controller", "login", "compute"])
def test_session_manager_only_where_it_is_the_way_in_and_on_no_node(role: str) -> None:
    """`up` has the controller boot again through a session, too, where people log in at a login machine."""
    with_login = aws_design(hosts=(CONTROLLER, LOGIN))
    for action in SSM_SESSION:
        assert may(action, "*", role=role) == (role != "compute")
        assert may(action, "*", role=role, design=with_login) == (role != "compute")
        assert not may(action, "*", role=role, design=VARIANTS["ssh"])
    for action in (*SSM_MESSAGES, *SSM_MANAGED):
        assert not may(action, "*", role=role), "no machine takes commands of Systems Manager"
    assert not may("ssm:GetParameter", "arn:aws:ssm:eu-west-1:123456789012:parameter/x", role=role)


def test_logs_go_into_the_clusters_group_and_streams_of_ones_own_kind_only() -> None:
    names = {"controller": "controller", "login": "login-0", "compute": "gpu-3"}
    for role, name in names.items():
        own_stream = f"{SCOPE.log_group}:log-stream:{name}/syslog"
        for action in ("logs:CreateLogStream", "logs:PutLogEvents"):
            assert may(action, own_stream, role=role, design=VARIANTS["ssh"])
            assert not may(action, own_stream.replace("/c:", "/d:"), role=role, design=VARIANTS["ssh"])
        assert not may("logs:DeleteLogStream", own_stream, role=role, design=VARIANTS["ssh"])
        for other in names.values():
            stream = f"{SCOPE.log_group}:log-stream:{other}/slurmctld.log"
            assert may("logs:PutLogEvents", stream, role=role, design=VARIANTS["ssh"]) == (other == name)


@pytest.mark.parametrize("role", ["controller", "login", "compute"])
def test_metrics_go_into_the_clusters_namespace_only(role: str) -> None:
    def put(**context: str) -> bool:
        return may("cloudwatch:PutMetricData", "*", role=role, context=context)

    assert put(**{"cloudwatch:namespace": "slurm-stacks/c"})
    for other in ("slurm-stacks/d", "slurm-stacks", "AWS/EC2", "CWAgent"):
        assert not put(**{"cloudwatch:namespace": other})
    assert not put()


def test_hooks_in_s3_are_read_by_whom_they_are_for() -> None:
    script = "arn:aws:s3:::own/hooks/a.sh"
    assert may("s3:GetObject", script, role="compute", design=VARIANTS["hooks"])
    assert not may("s3:GetObject", "arn:aws:s3:::own/hooks/b.sh", role="compute", design=VARIANTS["hooks"])
    assert not may("s3:GetObject", script, role="login", design=VARIANTS["hooks"])
    assert not may("s3:GetObject", script, role="compute")


def test_packages_in_s3_are_read_by_all_machines_and_by_those_that_become_images() -> None:
    package = "arn:aws:s3:::own/pyxis.deb"
    for role in ("controller", "login", "compute"):
        assert may("s3:GetObject", package, role=role, design=VARIANTS["hooks"])
        assert not may("s3:GetObject", package, role=role)
    image = policies.image(SCOPE, VARIANTS["hooks"])
    assert allowed(image, "s3:GetObject", package, {})
    assert not allowed(image, "s3:GetObject", "arn:aws:s3:::own/hooks/a.sh", {}), "it runs no hooks"


def test_the_helper_passes_no_condition_over() -> None:
    document = {
        "Statement": [
            {"Effect": "Allow", "Action": "a:b", "Resource": "*", "Condition": {"NumericLessThan": {}}}
        ]
    }
    with pytest.raises(AssertionError, match="NumericLessThan"):
        allowed(document, "a:b", "x")


KMS = f"arn:aws:kms:eu-west-1:{ACCOUNT}:key/12345678-1234-1234-1234-123456789012"


def test_a_customers_key_is_for_the_disks_of_nodes_alone() -> None:
    """The controller needs a grant on the key. Without it EC2 ends the machine at its start
    (Client.InternalError)."""
    design = aws_design(aws=AwsSettings(kms_key=KMS))
    by_ec2 = {"kms:ViaService": "ec2.eu-west-1.amazonaws.com"}
    grant = {**by_ec2, "kms:GrantIsForAWSResource": "true"}
    assert may("kms:CreateGrant", KMS, design=design, context=grant)
    assert not may(
        "kms:CreateGrant", KMS, design=design, context={**grant, "kms:GrantIsForAWSResource": "false"}
    )
    assert not may("kms:CreateGrant", KMS, design=design, context={"kms:GrantIsForAWSResource": "true"})
    for action in policies.KEY:
        assert may(action, KMS, design=design, context=by_ec2)
        assert not may(action, KMS, design=design, context={"kms:ViaService": "s3.eu-west-1.amazonaws.com"})
        assert not may(action, KMS.replace("1234-1234", "9999-1234"), design=design, context=by_ec2)
        assert not may(action, KMS, context=by_ec2), "nobody has named a key"
    for role in ("login", "compute", "image"):
        assert not may("kms:Decrypt", KMS, design=design, role=role, context=by_ec2)
    known = Session().get_service_model("kms").operation_names
    named = {action.removeprefix("kms:") for action in policies.KEY} | {"CreateGrant"}
    # IAM has a permission for each of the two sides of ReEncrypt.
    assert {name for name in named if not name.startswith("ReEncrypt")} <= set(known)


LICENSE = f"arn:aws:license-manager:eu-west-1:{ACCOUNT}:license-configuration:lic-{'0' * 32}"
HOSTS = f"arn:aws:resource-groups:eu-west-1:{ACCOUNT}:group/hosts"


def test_what_overrides_of_a_launch_template_use_may_be_used_and_nothing_more() -> None:
    overrides = {
        "license_specifications": [{"license_configuration_arn": LICENSE}],
        "placement": {"host_resource_group_arn": HOSTS},
        "block_device_mappings": [{"device_name": "/dev/sdb", "ebs": {"kms_key_id": KMS}}],
    }
    design = aws_design(
        partitions=(
            dataclasses.replace(CPU, aws=AwsPartition(launch_template_overrides=json.dumps(overrides))),
        )
    )
    by_ec2 = {"kms:ViaService": "ec2.eu-west-1.amazonaws.com"}
    assert may("kms:Decrypt", KMS, design=design, context=by_ec2)
    assert not may("kms:Decrypt", KMS.replace("1234-1234", "9999-1234"), design=design, context=by_ec2)
    for arn in (LICENSE, HOSTS):
        assert may("ec2:RunInstances", arn, design=design)
        assert not may("ec2:RunInstances", f"{arn}-another", design=design)
        assert not may("ec2:RunInstances", arn)


def test_a_group_by_name_may_be_launched_into_whatever_its_tags() -> None:
    named = dataclasses.replace(GPU, aws=AwsPartition(efa=1, placement_group="lab p4d"))
    design = aws_design(partitions=(CPU, named))
    assert may("ec2:RunInstances", f"{EC2}placement-group/lab p4d", design=design)
    assert not may("ec2:RunInstances", f"{EC2}placement-group/another", design=design, context=OURS)
    assert not may("ec2:RunInstances", f"{EC2}placement-group/lab p4d")


def test_a_machine_that_becomes_an_image_may_what_image_builder_documents() -> None:
    """The permissions are AmazonSSMManagedInstanceCore, version 2, without reading the account's
    parameters."""
    documented = """
        ssm:DescribeAssociation ssm:GetDeployablePatchSnapshotForInstance ssm:GetDocument ssm:DescribeDocument
        ssm:GetManifest ssm:ListAssociations ssm:ListInstanceAssociations ssm:PutInventory
        ssm:PutComplianceItems ssm:PutConfigurePackageResult ssm:UpdateAssociationStatus
        ssm:UpdateInstanceAssociationStatus ssm:UpdateInstanceInformation ssmmessages:CreateControlChannel
        ssmmessages:CreateDataChannel ssmmessages:OpenControlChannel ssmmessages:OpenDataChannel
        ec2messages:AcknowledgeMessage ec2messages:DeleteMessage ec2messages:FailMessage
        ec2messages:GetEndpoint ec2messages:GetMessages ec2messages:SendReply"""
    assert [action for action in documented.split() if not may(action, "*", role="image")] == []
    for action in ("ssm:GetParameter", "ssm:GetParameters", "secretsmanager:GetSecretValue"):
        assert not may(action, "*", role="image")


@pytest.mark.parametrize("preview", [False, True])
def test_the_secret_is_empty_and_leaves_nothing_behind(preview: bool) -> None:
    made = declare(lambda: AwsSecrets("s", aws_design()), preview=preview)
    assert counts(made) == {
        "slurm-stacks:index:AwsSecrets": 1,
        "aws:secretsmanager/secret:Secret": 1,  # and no version: its value is the head's to make
    }
    secret = made.inputs("s-munge")
    assert secret["name"] == "c-munge"
    assert secret["recoveryWindowInDays"] == 0
    assert "kmsKeyId" not in secret, "the account's own key of the service encrypts it"
    assert secret["tags"]["slurm-stacks:cluster"] == "c"
    assert unknown(made, "s-munge") == set()
    assert made.parents()["s-munge"] == "s"
    assert made.closed.count("s") == 1


def test_its_arn_is_known_only_when_it_is_there() -> None:
    for preview, expected in ((False, ["arn:s-munge"]), (True, [])):
        seen: list[str] = []
        declare(lambda found=seen: AwsSecrets("s", aws_design()).munge.apply(found.append), preview=preview)  # type: ignore[misc]
        assert seen == expected
