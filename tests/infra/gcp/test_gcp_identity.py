"""The machines have exactly these service accounts, and each may do exactly what its work needs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from infra.gcp import policies
from infra.gcp.identity import AccessTargets, GcpAccounts, GcpIdentity, GcpSecrets
from node.design.directory import Directory
from node.design.model import Access, ClusterDesign, Hook, Image
from tests.support.cel import MOST_OPERATORS, holds, operators
from tests.support.gcp_mocks import CPU, PROJECT, UNIQUE, declare, gcp_design, gcp_ssh_design
from tests.support.recorder import Recorder, counts, unknown

SECRET = f"projects/{PROJECT}/secrets/c-munge"
SUBNETWORK = "https://compute/subnetwork"
LINK = f"projects/{PROJECT}/zones/europe-west4-a"
INSTANCE, DISK, OBJECT = policies.INSTANCE, policies.DISK, "storage.googleapis.com/Object"
ACCOUNT, ROLE = "gcp:serviceaccount/account:Account", "gcp:projects/iAMCustomRole:IAMCustomRole"
PROJECT_GRANT, ACT_AS = "gcp:projects/iAMMember:IAMMember", "gcp:serviceaccount/iAMMember:IAMMember"
BUCKET_GRANT = "gcp:storage/bucketIAMMember:BucketIAMMember"
SECRET_GRANT = "gcp:secretmanager/secretIamMember:SecretIamMember"
SUBNETWORK_GRANT = "gcp:compute/subnetworkIAMMember:SubnetworkIAMMember"
LOGIN = gcp_ssh_design(login=True)
BAKING = gcp_design(image=Image(source="ubuntu-24.04", bake=True))
ADA, LAB = "user:ada@example.com", "group:lab@example.com"
HOOKS = gcp_design(hooks=(Hook("compute", "gs://own/hooks/a.sh"), Hook("all", "hooks/b.sh")))


def identity(
    design: ClusterDesign, *, preview: bool = False, seen: list[GcpIdentity] | None = None
) -> Recorder:
    def program() -> None:
        built = GcpIdentity("i", design, GcpAccounts("a", design), AccessTargets("store", SECRET, SUBNETWORK))
        if seen is not None:
            seen.append(built)

    return declare(program, preview=preview)


def roles_of(recorder: Recorder, role: str) -> set[str]:
    return {grant["role"] for grant in grants(recorder, role).values()}


def grants(recorder: Recorder, role: str) -> dict[str, dict[str, Any]]:
    """What the account of a role is granted: name of the resource -> its inputs."""
    member = f"serviceAccount:c-{role}@{PROJECT}.iam.gserviceaccount.com"
    found = {name: recorder.inputs(name) for name in recorder.types()}
    return {name: inputs for name, inputs in found.items() if inputs.get("member") == member}


def reports(role: str, name: str) -> bool:
    return holds(
        policies.own_reports("store", role).expression, OBJECT, f"projects/_/buckets/store/objects/{name}"
    )


# --- resources --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preview", [False, True])
@pytest.mark.parametrize(("design", "roles", "hooks"), [(gcp_design(), 2, 0), (LOGIN, 3, 0), (HOOKS, 2, 1)])
def test_an_identity_is_exactly_these_resources(
    design: ClusterDesign, roles: int, hooks: int, preview: bool
) -> None:
    made = identity(design, preview=preview)
    assert counts(made) == {
        "slurm-stacks:index:GcpAccounts": 1,
        "slurm-stacks:index:GcpIdentity": 1,
        ACCOUNT: roles,
        ROLE: 1,
        PROJECT_GRANT: 2 * roles + 1,
        SECRET_GRANT: 2,
        BUCKET_GRANT: 2 * roles + hooks,
        SUBNETWORK_GRANT: 1,
        ACT_AS: 1,
    }
    accounts = {name for name, kind in made.types().items() if kind == ACCOUNT}
    parents = {name: parent for name, parent in made.parents().items() if name not in ("a", "i")}
    assert parents == {name: "a" if name in accounts else "i" for name in parents}
    assert (made.closed.count("a"), made.closed.count("i")) == (1, 1)


def test_people_of_the_stack_file_act_as_its_machines_and_read_its_bucket() -> None:
    """On the cluster's own things alone: what is the project's would end with one of its clusters."""
    design = dataclasses.replace(BAKING, access=dataclasses.replace(BAKING.access, users=(ADA, LAB)))
    made = identity(design)
    for member in (ADA, LAB):
        granted = {
            name: made.inputs(name)["role"]
            for name in made.types()
            if name not in ("a", "i") and made.inputs(name).get("member") == member
        }
        assert {made.types()[name] for name in granted} == {BUCKET_GRANT, ACT_AS}
        assert sorted(granted.values()) == [
            *["roles/iam.serviceAccountUser"] * 2, "roles/storage.objectViewer",
        ], "of the controller and of nodes, not of what becomes an image"  # fmt: skip
    one = identity(dataclasses.replace(design, access=dataclasses.replace(design.access, users=(LAB,))))
    assert one.types().keys() < made.types().keys(), "who stays keeps what they have"


def test_what_machines_wait_for_is_every_grant() -> None:
    seen: list[GcpIdentity] = []
    made = identity(LOGIN, seen=seen)
    assert set(seen[0].emails) == {"controller", "login", "compute"}
    wanted = {name for name, kind in made.types().items() if kind != ACCOUNT and name not in ("a", "i")}
    assert {resource._name for resource in seen[0].grants} == wanted


def test_in_a_preview_members_are_unknown_and_what_is_granted_is_not() -> None:
    made = identity(gcp_design(), preview=True)
    assert {"member"} <= unknown(made, "i-controller-logWriter")
    assert made.inputs("i-controller-logWriter")["role"] == "roles/logging.logWriter"
    assert unknown(made, "i-launcher") == {"roleId"}
    assert made.inputs("a-compute")["accountId"] == "c-compute"


def test_every_account_has_exactly_these_roles() -> None:
    made = identity(LOGIN)
    launcher = f"projects/{PROJECT}/roles/slurm_stacks_launcher_{UNIQUE}"
    everybody = {
        "roles/logging.logWriter",
        "roles/monitoring.metricWriter",
        "roles/storage.objectViewer",
        "roles/storage.objectUser",
    }
    # Every process of a machine can act with the machine's account, so only the head has the munge key.
    head = {
        "roles/secretmanager.secretAccessor",
        "roles/secretmanager.secretVersionAdder",
        "roles/compute.networkUser",
        "roles/iam.serviceAccountUser",
        launcher,
    }
    for role, wanted in {"controller": everybody | head, "login": everybody, "compute": everybody}.items():
        assert roles_of(made, role) == wanted


def test_the_controller_alone_reads_the_password_of_the_directory() -> None:
    secret = "projects/own/secrets/reader"
    directory = Directory("corp", ("ldaps://a",), "dc=a", bind_dn="cn=r", password_secret=secret)
    made = identity(dataclasses.replace(LOGIN, access=Access("iap", directory=directory)))
    found = {
        role: [grant["role"] for grant in grants(made, role).values() if grant.get("secretId") == secret]
        for role in ("controller", "login", "compute")
    }
    assert found == {"controller": ["roles/secretmanager.secretAccessor"], "login": [], "compute": []}


def test_what_becomes_an_image_reads_no_secret_and_is_refused_the_rest() -> None:
    made = identity(BAKING)
    assert roles_of(made, "image") == {*policies.EVERYBODY, policies.READ_OBJECTS, policies.WRITE_OBJECTS}
    assert reports("image", "boot/image-compute.json")
    assert not reports("compute", "boot/image-compute.json")
    for key in ("boot/controller.json", "boot/cpu-0.json", "image.json"):
        assert not reports("image", key)


def test_grants_are_on_the_cluster_own_things() -> None:
    made = identity(LOGIN)
    for grant in grants(made, "controller").values():
        if "project" in grant and "subnetwork" not in grant:
            launches = grant["role"].rpartition("/")[2].startswith("slurm_stacks_launcher")
            assert launches or grant["role"] in policies.EVERYBODY, "all else is narrower than a project"
            assert bool(grant.get("condition")) == launches
    assert made.inputs("i-controller-nodes")["serviceAccountId"].endswith(
        f"/c-compute@{PROJECT}.iam.gserviceaccount.com"
    )
    assert made.inputs("i-controller-subnetwork")["subnetwork"] == SUBNETWORK
    assert {made.inputs(f"i-controller-{part}")["secretId"] for part in ("munge-read", "munge-write")} == {
        SECRET
    }
    assert {made.inputs(f"i-{role}-bucket")["bucket"] for role in ("controller", "compute")} == {"store"}


def test_the_roles_id_is_new_with_every_account() -> None:
    """The id of a deleted role stays taken for weeks: a cluster could not be made a second time."""
    made = identity(gcp_design())
    assert made.inputs("i-launcher")["roleId"].endswith(UNIQUE)
    assert len(made.inputs("i-launcher")["roleId"]) <= 64
    assert "-" not in made.inputs("i-launcher")["roleId"]


# --- what the controller may do ---------------------------------------------------------------------------


def test_only_the_controller_deals_with_compute_engine() -> None:
    made = identity(LOGIN)
    for role in ("login", "compute"):
        assert not any("compute" in grant["role"] for grant in grants(made, role).values())


def test_the_launcher_names_every_permission() -> None:
    """Another test shows with the driver itself that it needs all of them and no other."""
    found = policies.permissions(gcp_design())
    assert not any("*" in permission for permission in found)
    assert found == sorted(set(found))
    assert {permission.partition(".")[0] for permission in found} == {"compute"}
    assert not {
        verb for permission in found if (verb := permission.rpartition(".")[2]) in ("update", "setIamPolicy")
    }
    placed = gcp_design(partitions=(dataclasses.replace(CPU, placement="cluster"),))
    assert set(policies.permissions(placed)) - set(found) == {"compute.resourcePolicies.use"}
    own_image = gcp_design(image=Image(id="family/own"))
    assert set(policies.permissions(own_image)) - set(found) == {"compute.images.useReadOnly"}


@pytest.mark.parametrize(
    ("kind", "name", "allowed"),
    [
        (INSTANCE, "instances/c-cpu-0", True),
        (INSTANCE, "instances/c-gpu-3", True),
        (INSTANCE, "instances/c-controller", False),
        (INSTANCE, "instances/c-login-0", False),
        (INSTANCE, "instances/other-cpu-0", False),
        (INSTANCE, "instances/cc-cpu-0", False),
        (DISK, "disks/c-cpu-0", True),
        (DISK, "disks/other", False),
    ],
)
def test_machines_are_the_clusters_nodes(kind: str, name: str, allowed: bool) -> None:
    condition = policies.nodes_only("c")
    assert holds(condition.expression, kind, f"{LINK}/{name}") == allowed


def test_lists_and_operations_are_the_projects() -> None:
    expression = policies.nodes_only("c").expression
    assert holds(expression, "cloudresourcemanager.googleapis.com/Project", f"projects/{PROJECT}")
    assert holds(expression, "", f"{LINK}/operations/operation-1")


@pytest.mark.parametrize("role", ["controller", "login", "compute"])
def test_conditions_are_within_iams_limits(role: str) -> None:
    for said in (policies.nodes_only("c" * 40), policies.own_reports("b" * 63, role)):
        assert operators(said.expression) <= MOST_OPERATORS
        assert len(said.expression) < 4096
        assert len(said.title) <= 100


# --- everybody --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "own", "foreign"),
    [
        ("controller", "controller", ["login-0", "cpu-0"]),
        ("login", "login-0", ["controller", "cpu-0"]),
        ("compute", "gpu-3", ["controller", "login-0"]),
    ],
)
def test_a_machine_writes_the_boot_reports_of_its_kind_only(role: str, own: str, foreign: list[str]) -> None:
    assert reports(role, f"boot/{own}.json")
    for other in foreign:
        assert not reports(role, f"boot/{other}.json")
    for key in ("current.json", "code/x.zip", "settings/x.json", "loader.py"):
        assert not reports(role, key)
    assert not holds(
        policies.own_reports("store", role).expression,
        OBJECT,
        f"projects/_/buckets/other/objects/boot/{own}.json",
    )


def test_reports_are_written_into_the_clusters_bucket() -> None:
    made = identity(LOGIN)
    for role in ("controller", "login", "compute"):
        grant = made.inputs(f"i-{role}-reports")
        assert grant["condition"]["expression"] == policies.own_reports("store", role).expression
        assert "condition" not in made.inputs(f"i-{role}-bucket"), "all of it is read"


def test_hooks_in_cloud_storage_are_read_by_whom_they_are_for() -> None:
    made = identity(HOOKS)
    grant = made.inputs("i-compute-hook-0")
    assert (grant["bucket"], grant["role"]) == ("own", policies.READ_OBJECTS)
    expression = grant["condition"]["expression"]
    assert holds(expression, OBJECT, "projects/_/buckets/own/objects/hooks/a.sh")
    assert not holds(expression, OBJECT, "projects/_/buckets/own/objects/hooks/c.sh")
    assert not any(name.startswith("i-controller-hook") for name in made.types())


def test_a_script_may_have_quotes_in_its_name() -> None:
    odd = "it's/a \\ b' || resource.name != '"
    expression = policies.one_object("own", odd).expression
    assert holds(expression, OBJECT, f"projects/_/buckets/own/objects/{odd}")
    assert not holds(expression, OBJECT, "projects/_/buckets/own/objects/it")
    assert operators(expression) == 0


def test_the_helper_passes_nothing_over() -> None:
    with pytest.raises(AssertionError, match="not understood"):
        holds("resource.name.matches('x')  + 1", INSTANCE, "x")
    with pytest.raises(KeyError):
        holds("resource.name.endsWith('x')", INSTANCE, "x")


@pytest.mark.parametrize("preview", [False, True])
def test_the_secret_is_empty_and_leaves_nothing_behind(preview: bool) -> None:
    made = declare(lambda: GcpSecrets("s", gcp_design()), preview=preview)
    assert counts(made) == {
        "slurm-stacks:index:GcpSecrets": 1,
        "gcp:secretmanager/secret:Secret": 1,  # and no version: its value is the controller's to make
    }
    secret = made.inputs("s-munge")
    assert secret["secretId"] == "c-munge"
    assert secret["deletionProtection"] is False
    assert secret["replication"] == {"userManaged": {"replicas": [{"location": "europe-west4"}]}}
    assert secret["labels"]["slurm-stacks-cluster"] == "c"
    assert not {"versionDestroyTtl", "ttl", "expireTime"} & set(secret), "it lives as long as its cluster"
    assert unknown(made, "s-munge") == set()
    assert made.parents()["s-munge"] == "s"
    assert made.closed.count("s") == 1


def test_its_name_is_known_only_when_it_is_there() -> None:
    for preview, expected in ((False, ["s-munge-id"]), (True, [])):
        seen: list[str] = []
        declare(lambda found=seen: GcpSecrets("s", gcp_design()).munge.apply(found.append), preview=preview)  # type: ignore[misc]
        assert seen == expected
