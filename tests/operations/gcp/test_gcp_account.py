"""The engineer's account: missing credentials, Google's errors in one sentence, lists with all pages."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_FAILED, EXIT_REFUSED
from operations.gcp import account
from operations.gcp.account import Account, GoogleError, refusal
from tests.support import sentences
from tests.support.fake_gce import Fault
from tests.support.fake_google import EMAIL, Anybody, Project, disabled, project


@pytest.fixture(scope="module")
def shared() -> Iterator[Project]:
    """One for the whole module: making it takes a second, because the library reads its messages."""
    with project() as made:
        yield made


@pytest.fixture
def gcp_project(shared: Project) -> Project:
    shared.empty()
    return shared


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Removes all credentials; this is no machine at Google that could have its own."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    # google-auth asks a `gcloud` for the person's project, which takes a second where there is one.
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


# --- credentials ------------------------------------------------------------------------------------------


def test_without_credentials_there_is_one_sentence(nobody: Path) -> None:
    with sentences.raises(
        "gcp.no-credentials", "`gcloud auth login --update-adc`", "`./cluster plan`"
    ) as caught:
        account.require()
    assert caught.value.exit_code == EXIT_REFUSED


@pytest.mark.parametrize("product", ["Google Compute Engine", "ThinkPad", None])
def test_a_metadata_server_is_looked_for_at_google_only(
    nobody: Path, monkeypatch: pytest.MonkeyPatch, product: str | None
) -> None:
    """The search for a missing metadata server takes longer than the doctor's time limit."""
    import google.auth

    monkeypatch.delenv("NO_GCE_CHECK")
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.delenv(name, raising=False)
    if product is not None:
        (nobody / "product").write_text(f"{product}\n")
    monkeypatch.setattr(account, "PRODUCT", nobody / "product")
    seen: list[str | None] = []

    def default(**_: Any) -> tuple[Anybody, None]:
        seen.append(os.environ.get("NO_GCE_CHECK"))
        return Anybody(), None

    monkeypatch.setattr(google.auth, "default", default)
    account.require()
    monkeypatch.delenv("NO_GCE_CHECK", raising=False)
    assert seen == [None if product == "Google Compute Engine" else "true"]


def test_a_key_file_that_is_none_is_named(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nobody / "key.json").write_text("{}")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(nobody / "key.json"))
    with sentences.raises("gcp.credentials-unusable", "GOOGLE_APPLICATION_CREDENTIALS") as caught:
        account.require()
    assert caught.value.exit_code == EXIT_REFUSED


def test_without_the_library_its_group_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with sentences.raises("gcp.no-client", "pyproject.toml") as caught:
        account.require()
    assert caught.value.exit_code == EXIT_REFUSED


def test_a_users_calls_are_counted_in_the_clusters_project(
    nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = {"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}
    (nobody / "application_default_credentials.json").write_text(json.dumps(user))
    account.require()
    assert account.of(ClusterRef("c", "r", "z", "p-1")).credentials.quota_project_id == "p-1"
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "said")
    assert account.of(ClusterRef("c", "r", "z", "p-1")).credentials.quota_project_id == "said"


def test_whose_the_credentials_are_is_asked_or_known(gcp_project: Project) -> None:
    assert gcp_project.account.email() == EMAIL
    assert gcp_project.calls == ["GET /oauth2/tokeninfo"]

    class Robot(Anybody):
        service_account_email = "robot@p-1.iam.gserviceaccount.com"

    assert Account("p-1", Robot()).email() == Robot.service_account_email


def test_credentials_that_do_not_say_whose_they_are_are_refused(gcp_project: Project) -> None:
    gcp_project.refuse.append(("GET", "/oauth2", 200, b"{}"))
    with sentences.raises("gcp.no-account") as caught:
        gcp_project.account.email()
    assert caught.value.exit_code == EXIT_REFUSED


def test_credentials_that_have_expired_are_said_to_have(gcp_project: Project) -> None:
    from google.auth.exceptions import RefreshError

    class Old(Anybody):
        def before_request(self, *_: Any) -> None:
            raise RefreshError("invalid_grant: Token has been expired or revoked.")  # type: ignore[no-untyped-call]

    old = Account("p-1", Old(), gcp_project.account.services)
    with sentences.raises("gcp.credentials-expired", "invalid_grant", "`gcloud auth login") as caught:
        old.call("GET", "storage", "b")
    assert caught.value.exit_code == EXIT_REFUSED


# --- refusals ---------------------------------------------------------------------------------------------


def error(code: int, message: str, reason: str, status: str = "", **metadata: str) -> bytes:
    """An error in the form that Compute Engine uses."""
    content: dict[str, Any] = {
        "code": code,
        "message": message,
        "errors": [{"reason": reason, "message": message}],
    }
    if metadata:
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "metadata": metadata}
        content["details"] = [info]
    return json.dumps({"error": {**content, "status": status}}).encode()


REFUSALS = [
    (403, disabled("compute"), 3,
     "the API compute.googleapis.com is not enabled in project p-1: enable it with `gcloud services enable "
     "compute.googleapis.com --project p-1`, wait a minute, and run the command again"),
    (403, error(403, "API has not been used", "accessNotConfigured"), 3, "the API compute.goog"),
    (401, error(401, "Invalid Credentials", "authError"), 3, "not accept these credentials (authError: Inv"),
    (403, error(403, "Required 'compute.instances.list' permission for 'projects/p-1'", "forbidden"), 3,
     "your account may not do that in project p-1 (forbidden: Required 'compute.instances.list'"),
    (403, error(403, "Caller does not have required permission to use project p-1.", "USER_PROJECT_DENIED",
                "PERMISSION_DENIED", service="x"), 3, "there is no project p-1, or your account may not use"),
    (403, error(403, "This API method requires billing to be enabled.", "forbidden"), 3, "has no billing"),
    (403, error(403, "Quota 'NVIDIA_V100_GPUS' exceeded. Limit: 0.0", "quotaExceeded"), 3, "a quota of proj"),
    (429, error(429, "Slow down", "rateLimitExceeded"), 1, "too many calls at once"),
    (404, error(404, "The resource 'x' was not found", "notFound"), 1, "not find what compute was asked for"),
    (400, error(400, "Invalid value for field 'zone'", "invalid"), 1,
     "Google Cloud (compute) refused: invalid: Invalid value for field 'zone'"),
    (502, b"<html>\n<p>Bad   gateway</p></html>", 1, "refused: <html> <p>Bad gateway</p></html>"),
    (400, b'{"error": "invalid_token", "error_description": "Invalid"}', 1, "invalid_token: Invalid"),
    (500, b"", 1, "refused: HTTP status 500"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "content", "code", "words"), REFUSALS, ids=range(len(REFUSALS)))
def test_what_google_refuses_is_one_sentence(status: int, content: bytes, code: int, words: str) -> None:
    refused = refusal(status, content, "compute", "p-1")
    assert words in str(refused)
    assert "\n" not in str(refused)
    assert (refused.status, refused.exit_code) == (status, code)


def test_what_passes_is_asked_again_and_what_does_not_is_not(gcp_project: Project) -> None:
    gcp_project.gce.faults = [
        Fault("networks.list", "backendError", 503, times=2),
        Fault("firewalls.list", "rateLimitExceeded", 403, times=1),
        Fault("routers.aggregated_list", "forbidden", 403),
        Fault("snapshots.list", "backendError", 503),
    ]
    pauses: list[float] = []
    mine = Account("p-1", Anybody(), gcp_project.account.services, sleep=pauses.append)
    for path in ("global/networks", "global/firewalls"):
        assert list(mine.pages("compute", f"projects/{{project}}/{path}", "items")) == []
    assert pauses == [1.0, 2.0, 1.0]
    with sentences.raises("gcp.not-allowed", kind=GoogleError):
        list(mine.pages("compute", "projects/{project}/aggregated/routers", "items"))
    with sentences.raises("gcp.refused", "backendError", kind=GoogleError):
        list(mine.pages("compute", "projects/{project}/global/snapshots", "items"))
    assert gcp_project.gce.counts() == {
        "networks.list": 3, "firewalls.list": 2, "routers.aggregated_list": 1,
        "snapshots.list": account.TRIES,
    }  # fmt: skip


def test_a_service_that_is_not_reached_is_said() -> None:
    far = Account("p-1", Anybody(), {"storage": "http://127.0.0.1:9"}, sleep=lambda _: None)
    with sentences.raises("gcp.no-answer") as caught:
        far.call("GET", "storage", "b")
    assert caught.value.exit_code == EXIT_FAILED


# --- lists ------------------------------------------------------------------------------------------------


def test_lists_are_read_to_their_end_also_those_of_every_zone(gcp_project: Project) -> None:
    gcp_project.gce.page = 2
    for number in range(5):
        gcp_project.node(f"cpu-{number}", zone=("europe-west4-a", "europe-west4-b")[number % 2])
    path = "projects/{project}/aggregated/instances"
    names = sorted(str(page["name"]) for page in gcp_project.account.pages("compute", path, "items"))
    assert names == [f"c-cpu-{number}" for number in range(5)]
    assert gcp_project.gce.counts() == {"instances.aggregated_list": 3}


def test_a_zone_that_does_not_answer_is_no_zone_without_machines(gcp_project: Project) -> None:
    gcp_project.node("cpu-0")
    gcp_project.gce.unreachable = {"europe-west4-a"}
    try:
        path = "projects/{project}/aggregated/instances"
        for region in (None, "europe-west4"):
            gcp_project.account.region = region
            with sentences.raises("gcp.zone-silent", "zones/europe-west4-a"):
                list(gcp_project.account.pages("compute", path, "items"))
        # The cluster has nothing in that zone, so its silence does not matter.
        gcp_project.gce.unreachable = {"us-east1-b", "europe-west40-a"}
        assert [page["name"] for page in gcp_project.account.pages("compute", path, "items")] == ["c-cpu-0"]
    finally:
        gcp_project.account.region = None
        gcp_project.gce.unreachable = set()
