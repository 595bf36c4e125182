"""Security rules over the planned resources of every Google Cloud stack file: none fires, and each one
can."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import shipped
from tests.support.gcp_plans import ANYWHERE, BAKED, FILES, LONGEST, RICH, SSH, SUBJECTS, planned
from tests.support.gcp_rules import RULES, Plan

Resources = list[dict[str, Any]]
Change = Callable[[Resources], None]


@pytest.fixture(params=SUBJECTS)
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> Plan:
    return planned(request.param, tmp_path)


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_finds_anything(plan: Plan, rule: str) -> None:
    assert list(RULES[rule](plan)) == []


def test_the_subjects_have_what_they_are_called_after(tmp_path: Path) -> None:
    def kinds(subject: str) -> set[str]:
        return {resource["type"] for resource in planned(subject, tmp_path).resources}

    assert set(FILES) == {"gcp-cpu", "gcp-gpu", "gcp-cpu, the draft", "gcp-gpu, the draft"}
    assert all(path in FILES.values() for path in shipped.files("Pulumi.gcp-"))
    assert "gcp:compute/image:Image" in kinds(BAKED)
    assert {"gcp:filestore/instance:Instance", "gcp:compute/resourcePolicy:ResourcePolicy"} <= kinds(RICH)
    assert [name for name, one in planned(SSH, tmp_path).of("Address") if one["addressType"] == "EXTERNAL"]
    assert all("c" * 40 in resource["name"] for resource in planned(LONGEST, tmp_path).resources[1:])


# --- each rule can fire -----------------------------------------------------------------------------------


def edit(name: str, *path: str | int, to: Any) -> Change:
    """Changes the value at a path of a resource's inputs. `...` removes the value."""

    def change(resources: Resources) -> None:
        (found,) = [r for r in resources if r["name"] == f"slurm8-{name}"]
        place: Any = found["inputs"]
        for key in path[:-1]:
            place = place[key]
        if to is ...:
            del place[path[-1]]
        else:
            place[path[-1]] = to

    return change


def another(kind: str, name: str = "slurm8-new", **inputs: Any) -> Change:
    return lambda resources: resources.append({"type": kind, "name": name, "inputs": inputs})


def granted(kind: str, role: str, who: str = "compute", **inputs: Any) -> Change:
    return another(f"gcp:{kind}", role=role, member=f"<slurm8-accounts-{who}.member>", **inputs)


NODE, LOGIN, CONTROLLER = "instance-templates-debug", "head-login-0", "head-controller"
BUILDER = "images-compute-nvidia-closed-machine"
IAP, LAUNCHER, NODES = "network-login-iap", "identity-launcher", "identity-controller-nodes"
SHIELD = "shieldedInstanceConfig"
PROJECT, BUCKET = "projects/iAMMember:IAMMember", "storage/bucketIAMMember:BucketIAMMember"
ACCOUNT, SECRET = "serviceaccount/iAMMember:IAMMember", "secretmanager/secretIamMember:SecretIamMember"
ACT, ADD = "roles/iam.serviceAccountUser", "roles/secretmanager.secretVersionAdder"
OPEN: dict[str, Any] = {
    "direction": "INGRESS",
    "allows": [{"protocol": "tcp", "ports": ["443"]}],
    "targetServiceAccounts": ["a"],
}
PUBLIC = [{"subnetwork": "s", "accessConfigs": [{"natIp": "<slurm8-addresses-login-0-public.address>"}]}]
OWN_ACCORD = [{"subnetwork": "s", "accessConfigs": [{}]}]
FIRES: list[tuple[str, str, Change]] = [
    ("ingress", "all", edit(IAP, "sourceRanges", to=["0.0.0.0/0"])),
    ("ingress", "half", edit(IAP, "sourceRanges", to=["35.235.240.0/20", "128.0.0.0/1"])),
    ("ingress", "ipv6", edit(IAP, "sourceRanges", to=["::/0"])),
    ("ingress", "unsaid", edit(IAP, "sourceRanges", to=...)),
    ("ingress", "everybody", edit(IAP, "targetServiceAccounts", to=...)),
    ("ingress", "tags", edit("network-compute-compute", "sourceTags", to=["node"])),
    ("ingress", "proxied", edit(IAP, "allows", to=[{"protocol": "tcp"}])),
    ("ingress", "new", another("gcp:compute/firewall:Firewall", **OPEN)),
    ("addresses", "node", edit(NODE, "networkInterfaces", to=PUBLIC)),
    ("addresses", "image", edit(BUILDER, "networkInterfaces", to=PUBLIC)),
    ("addresses", "own-accord", edit(LOGIN, "networkInterfaces", to=OWN_ACCORD)),
    ("addresses", "default", edit(NODE, "networkInterfaces", to=[])),
    ("addresses", "other", edit(NODE, "networkInterfaces", to=[{"network": "default"}])),
    ("addresses", "ipv6", edit(LOGIN, "networkInterfaces", 0, "ipv6AccessConfigs", to=[{}])),
    ("reserved", "loose", edit("addresses-login-0", "addressType", to="EXTERNAL")),
    ("reserved", "unsaid", edit("addresses-login-0", "addressType", to=...)),
    ("networks", "auto", edit("network-vpc", "autoCreateSubnetworks", to=...)),
    ("networks", "private", edit("network-subnetwork", "privateIpGoogleAccess", to=False)),
    ("shielded", "node", edit(NODE, SHIELD, "enableIntegrityMonitoring", to=False)),
    ("shielded", "head", edit(CONTROLLER, SHIELD, "enableVtpm", to=...)),
    ("shielded", "image", edit(BUILDER, SHIELD, to=...)),
    ("logins", "oslogin", edit(NODE, "metadata", "enable-oslogin", to="FALSE")),
    ("logins", "keys", edit(LOGIN, "metadata", "block-project-ssh-keys", to=...)),
    ("logins", "serial", edit(CONTROLLER, "metadata", "serial-port-enable", to="TRUE")),
    ("logins", "own-key", edit(LOGIN, "metadata", "ssh-keys", to="ada:ssh-ed25519 AAAA")),
    ("identities", "unsaid", edit(NODE, "serviceAccount", to=...)),
    ("identities", "default", edit(LOGIN, "serviceAccount", "email", to="1-compute@developer.x")),
    ("labelled", "none", edit(CONTROLLER, "labels", to={"slurm-stacks-role": "controller"})),
    ("labelled", "other", edit("storage-home", "labels", "slurm-stacks-cluster", to="slurm9")),
    ("labelled", "image", edit("images-controller", "labels", to=...)),
    ("buckets", "public", edit("bucket-store", "publicAccessPrevention", to="inherited")),
    ("buckets", "owner", edit("bucket-store", "uniformBucketLevelAccess", to=...)),
    ("members", "all", edit("identity-compute-bucket", "member", to="allUsers")),
    ("members", "google", edit("identity-compute-bucket", "member", to="allAuthenticatedUsers")),
    ("members", "person", edit("identity-compute-logWriter", "member", to="user:ada@example.com")),
    ("roles", "editor", granted(PROJECT, "roles/editor")),
    ("roles", "compute", granted(PROJECT, "roles/compute.instanceAdmin.v1", condition={"expression": "x"})),
    ("roles", "buckets", granted(PROJECT, "roles/storage.objectViewer")),
    ("roles", "unconditioned", edit("identity-controller-launcher", "condition", to=...)),
    ("roles", "admin", granted(SECRET, "roles/secretmanager.admin", "controller")),
    ("roles", "token", granted(ACCOUNT, "roles/iam.serviceAccountTokenCreator", "controller")),
    ("reports", "anywhere", granted(BUCKET, "roles/storage.objectUser", bucket="b")),
    ("reports", "code", edit("identity-login-reports", "condition", "expression", to="true")),
    ("acting", "node", granted(ACCOUNT, ACT, serviceAccountId="<slurm8-accounts-compute.name>")),
    ("acting", "head", edit(NODES, "serviceAccountId", to="<slurm8-accounts-login.name>")),
    ("acting", "key", granted(SECRET, ADD)),
    ("acting", "reads-key", granted(SECRET, "roles/secretmanager.secretAccessor")),
    ("permissions", "policy", edit(LAUNCHER, "permissions", to=["compute.instances.setIamPolicy"])),
    ("permissions", "firewall", edit(LAUNCHER, "permissions", to=["compute.firewalls.create"])),
    ("permissions", "account", edit(LAUNCHER, "permissions", to=["iam.serviceAccounts.actAs"])),
    ("secrets", "key", edit("bundle-settings", "content", to="-----BEGIN OPENSSH PRIVATE KEY-----")),
    ("secrets", "account", edit(NODE, "metadata", "key", to='{"private_key": "x"}')),
    ("seen", "version", another("gcp:secretmanager/secretVersion:SecretVersion", secretData="x")),
    ("seen", "key", another("gcp:serviceaccount/key:Key", serviceAccountId="x")),
    ("seen", "policy", another("gcp:projects/iAMPolicy:IAMPolicy", policyData="x")),
    ("seen", "binding", another("gcp:compute/imageIamBinding:ImageIamBinding", members=["allUsers"])),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "change"), [pytest.param(r, c, id=f"{r}-{n}") for r, n, c in FIRES])
def test_each_rule_fires_at_what_it_forbids(rule: str, change: Change, tmp_path: Path) -> None:
    """Only that rule fires: a rule that fires at everything says nothing."""
    spoilt = copy.deepcopy([dict(r) for r in planned(BAKED, tmp_path).resources])
    change(spoilt)
    assert {name for name, one in RULES.items() if list(one(Plan(spoilt)))} == {rule}


def test_every_rule_has_been_seen_to_fire() -> None:
    assert {rule for rule, _, _ in FIRES} == set(RULES)


def test_what_is_said_twice_is_open_for_ssh_alone(tmp_path: Path) -> None:
    """The rule allows SSH from everywhere only if the stack file confirms it, and allows nothing but SSH."""
    said = planned(ANYWHERE, tmp_path)
    (finding,) = RULES["ingress"](Plan(said.resources))
    assert "open to 0.0.0.0/0" in finding
    wider = copy.deepcopy([dict(r) for r in said.resources])
    (rule,) = [r["inputs"] for r in wider if r["inputs"].get("sourceRanges") == ["0.0.0.0/0"]]
    rule["allows"][0]["ports"] = ["22", "6817"]
    assert list(RULES["ingress"](Plan(wider, anywhere=True)))
