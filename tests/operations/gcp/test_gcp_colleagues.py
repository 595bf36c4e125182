"""The roles in docs/gcp.md suffice for what colleagues do, and none is more than they need.

Recorded calls of the commands on one side, the permission lists of Google's roles on the other: transcribed
from https://cloud.google.com/iam/docs/understanding-roles, as far as anything here asks for them. Commands
that go on over SSH (`exec`, `status`, `logs`) ask Google Cloud for nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.clouds.commands import ClusterRef
from infra.gcp import policies
from infra.program.stack import Stack
from operations.clouds import ssh_access
from operations.gcp.cloud import GcpCloud
from operations.gcp.os_login import bring_key
from tests.support.checkout import ROOT
from tests.support.fake_google import BUCKET, KEY, Project, project
from tests.support.gcp_mocks import gcp_design, gcp_ssh_design

ROLES = {
    "roles/compute.osLogin": {
        "compute.instances.get", "compute.instances.list", "compute.instances.osLogin",
        "compute.projects.get",
    },
    "roles/iap.tunnelResourceAccessor": {"iap.tunnelInstances.accessViaIAP"},
    "roles/serviceusage.serviceUsageConsumer": {"serviceusage.services.use"},
    "roles/iam.serviceAccountUser": {"iam.serviceAccounts.actAs"},
    "roles/storage.objectViewer": {"storage.objects.get", "storage.objects.list"},
}  # fmt: skip
GRANTED = {policies.ACT_AS, policies.READ_OBJECTS}
"""The roles that the stack grants, on its own parts, to whom `access.users` names."""
LOGIN = {"compute.instances.osLogin", "iam.serviceAccounts.actAs"}
"""The permissions that OS Login needs on the machine, and on its service account
(https://cloud.google.com/compute/docs/oslogin/set-up-oslogin)."""
TUNNEL = {"iap.tunnelInstances.accessViaIAP", "compute.instances.get", "compute.projects.get"}
"""The permissions of `gcloud compute start-iap-tunnel` (https://cloud.google.com/iap/docs/using-tcp-forwarding)."""
COUNTED = "serviceusage.services.use"
"""The permission for calls that name a quota project, as a user's calls do (`account._credentials`)."""
CALLS = {
    # OS Login needs no permission for the user's own keys and name.
    r"(GET|POST|PATCH) /oslogin/users/ada@example\.com\S*": set(),
    r"GET /oauth2/tokeninfo": set(),
    rf"GET /storage/b/{BUCKET}/o/\S+": {"storage.objects.get"},
    r"GET /storage/b": {"storage.buckets.list"},
    r"instances\.aggregated_list": {"compute.instances.list"},
}


@pytest.fixture
def gcp_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519.pub").write_text(f"{KEY} ada@laptop\n")
    with project() as made:
        yield made


def wanted(gcp_project: Project, mode: str) -> set[str]:
    """The permissions that Google Cloud requires for a colleague's `./cluster ssh`."""
    gcp_project.bucket()
    gcp_project.head()
    gcp_project.report("controller", "ready")
    cloud = GcpCloud(ClusterRef("c", "europe-west4", "europe-west4-a", "p-1"), lambda _: gcp_project.account)
    design = gcp_design() if mode == "iap" else gcp_ssh_design()
    login = ssh_access.find(Stack(ROOT, "test"), design, cloud)
    assert (login.target.proxy_command is not None) is (mode == "iap")
    assert bring_key(gcp_project.account, Path.home() / ".ssh")  # as the ProxyCommand does
    needed = {COUNTED, *LOGIN, *(TUNNEL if mode == "iap" else ())}
    for call in [*gcp_project.calls, *gcp_project.gce.names()]:
        (rule,) = [rule for rule in CALLS if re.fullmatch(rule, call.replace("%40", "@"))]
        needed |= CALLS[rule]
    return needed


def documented() -> tuple[set[str], str]:
    """The roles that docs/gcp.md names for a login, and that text."""
    page = (ROOT / "docs" / "gcp.md").read_text()
    text = page.partition("**Roles of colleagues**")[2].partition("\n4. ")[0]
    return set(re.findall(r"roles/[\w.]+", text)) - {"roles/compute.osAdminLogin"}, text


@pytest.mark.parametrize("mode", ["iap", "ssh"])
def test_the_roles_of_the_page_are_what_a_colleague_needs(gcp_project: Project, mode: str) -> None:
    roles, _ = documented()
    external = {
        "roles/compute.osLoginExternalUser"
    }  # a role of the organisation, which is checked before these
    assert (roles - external) | GRANTED == set(ROLES)
    needed = wanted(gcp_project, mode)
    assert needed <= set().union(*ROLES.values())
    idle = {role for role, granted in ROLES.items() if not granted & needed}
    assert idle == ({"roles/iap.tunnelResourceAccessor"} if mode == "ssh" else set())


def test_what_is_one_clusters_is_not_granted_on_the_project() -> None:
    """There the roles would allow acting as every service account and reading every bucket."""
    _, text = documented()
    assert "`access.users`" in text, (
        "the stack grants them on its own parts: tests/infra/gcp/test_gcp_identity.py"
    )
    commands = text.partition("```sh\n")[2].partition("```")[0]
    assert "gcloud projects add-iam-policy-binding" in commands
    assert set(re.findall(r"roles/[\w.]+", commands)) == set(ROLES) - GRANTED
