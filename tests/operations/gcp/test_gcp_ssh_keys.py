"""SSH access on Google Cloud: the machine by its label, its published host keys, and OS Login's user."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.clouds.commands import ClusterRef, WaitRequest
from infra.errors import EXIT_REFUSED, NotUpError
from infra.gcp import access
from infra.program.launcher import pasted
from infra.program.stack import Stack
from node.design.model import ClusterDesign
from operations.clouds import boots, ssh_access
from operations.gcp.cloud import GcpCloud
from operations.gcp.os_login import KEY_SECONDS, bring_key
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.fake_google import BUCKET, KEY, USER, Project, project
from tests.support.gcp_mocks import gcp_design, gcp_ssh_design

ZONE = "europe-west4-a"
NOW = 1_800_000_000.0
PROXY = f"operations.gcp proxy --project p-1 --zone {ZONE} --instance %h --port %p"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a key and without an agent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519.pub").write_text(f"{KEY} ada@laptop\n")
    return tmp_path


@pytest.fixture(scope="module")
def shared() -> Iterator[Project]:
    """One for the whole module: making it takes a second, because the library reads its messages."""
    with project() as made:
        yield made


@pytest.fixture
def gcp_project(shared: Project, home: Path) -> Project:
    shared.empty()
    return shared


def cloud(gcp_project: Project) -> GcpCloud:
    return GcpCloud(ClusterRef("c", "europe-west4", ZONE, "p-1"), lambda _: gcp_project.account)


def find(gcp_project: Project, design: ClusterDesign) -> ssh_access.Login:
    return ssh_access.find(Stack(ROOT, "test"), design, cloud(gcp_project))


# --- OS Login ---------------------------------------------------------------------------------------------


def test_a_key_is_brought_with_an_expiry_and_the_users_name_comes_back(
    gcp_project: Project, home: Path
) -> None:
    assert bring_key(gcp_project.account, home / ".ssh", NOW) == USER
    (key,) = gcp_project.keys.values()
    assert key == {"key": f"{KEY} ada@laptop", "expirationTimeUsec": str(round((NOW + KEY_SECONDS) * 1e6))}


@pytest.mark.parametrize(
    ("expires", "brought"),
    [
        (None, False),
        (str(int((NOW + KEY_SECONDS * 0.6) * 1e6)), False),
        (str(int((NOW + KEY_SECONDS * 0.4) * 1e6)), True),
        (str(int((NOW - 60) * 1e6)), True),
    ],
    ids=["for ever", "long enough", "soon over", "over"],
)
def test_a_key_that_is_there_is_left_as_long_as_it_lasts(
    gcp_project: Project, home: Path, expires: str | None, brought: bool
) -> None:
    """A key that a user has stored without an end must not get one."""
    gcp_project.accounts.append({"username": USER})
    gcp_project.keys["old"] = {"key": KEY, **({"expirationTimeUsec": expires} if expires else {})}
    assert bring_key(gcp_project.account, home / ".ssh", NOW) == USER
    assert any(call.startswith("PATCH") for call in gcp_project.calls) is brought
    (key,) = gcp_project.keys.values()
    wanted = str(round((NOW + KEY_SECONDS) * 1e6)) if brought else expires
    assert key.get("expirationTimeUsec") == wanted, "an import changes no key that is there"


def test_a_key_that_went_as_it_was_looked_at_is_brought_anew(
    gcp_project: Project, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcp_project.accounts.append({"username": USER})
    gcp_project.keys["old"] = {"key": KEY, "expirationTimeUsec": str(int((NOW - 60) * 1e6))}
    profile = gcp_project._profile

    def gone() -> dict[str, object]:
        said = {**profile(), "sshPublicKeys": dict(gcp_project.keys)}
        gcp_project.keys.pop("old", None)
        return said

    monkeypatch.setattr(gcp_project, "_profile", gone)
    assert bring_key(gcp_project.account, home / ".ssh", NOW) == USER
    (key,) = gcp_project.keys.values()
    assert key["expirationTimeUsec"] == str(round((NOW + KEY_SECONDS) * 1e6))


def test_of_several_names_the_marked_one_is_taken(gcp_project: Project, home: Path) -> None:
    gcp_project.accounts += [{"username": "old"}, {"username": "new", "primary": True}, {"uid": "7"}]
    assert bring_key(gcp_project.account, home / ".ssh", NOW) == "new"


def test_a_user_without_a_name_on_machines_gets_one(gcp_project: Project, home: Path) -> None:
    gcp_project.keys["old"] = {"key": KEY}
    assert bring_key(gcp_project.account, home / ".ssh", NOW) == USER
    assert gcp_project.keys == {"old": {"key": KEY}}


def test_an_organisation_that_takes_no_keys_is_said(gcp_project: Project, home: Path) -> None:
    gcp_project.managed = False
    with sentences.raises("gcp.os-login", "ada@example.com") as caught:
        bring_key(gcp_project.account, home / ".ssh", NOW)
    assert caught.value.exit_code == EXIT_REFUSED


def test_without_a_key_of_ones_own_nothing_is_asked(gcp_project: Project, home: Path) -> None:
    (home / ".ssh" / "id_ed25519.pub").unlink()
    with sentences.raises("ssh.no-key"):
        bring_key(gcp_project.account, home / ".ssh", NOW)
    assert gcp_project.calls == []


# --- which machine ----------------------------------------------------------------------------------------


def test_the_login_machine_is_reached_through_the_proxy_by_its_name(gcp_project: Project) -> None:
    gcp_project.bucket()
    gcp_project.head()
    gcp_project.report("controller", "ready")
    target = find(gcp_project, gcp_design()).target
    assert (target.host, target.user, target.host_keys) == ("c-controller", USER, (KEY,))
    assert target.proxy_command is not None
    assert target.proxy_command.endswith(PROXY)
    assert shlex.split(target.proxy_command)[:2] == [f"{ROOT}/.venv/bin/python", "-I"]


def test_a_machine_with_a_public_address_needs_no_proxy(gcp_project: Project) -> None:
    gcp_project.bucket()
    gcp_project.head("login-0")
    gcp_project.report("login-0", "ready")
    target = find(gcp_project, gcp_ssh_design(login=True)).target
    assert (target.host, target.proxy_command) == ("10.0.0.2", None)
    assert len(gcp_project.keys) == 1, "the key is there before ssh is"


def test_no_machine_is_not_up_and_a_booting_one_half(gcp_project: Project) -> None:
    with sentences.raises("cluster.not-up", kind=NotUpError):
        find(gcp_project, gcp_design())
    gcp_project.bucket()
    gcp_project.head()
    with sentences.raises("ssh.booting", kind=NotUpError):
        find(gcp_project, gcp_design())


def test_of_a_machine_that_somebody_stopped_it_says_what_starts_it(gcp_project: Project) -> None:
    gcp_project.head(status="TERMINATED")
    with sentences.raises("ssh.machine-stopped", "`./cluster up --stack test`"):
        find(gcp_project, gcp_design())


def test_the_proxy_is_for_iap_alone() -> None:
    place = ClusterRef("c", "europe-west4", ZONE, "p-1")
    assert access.proxy(place, "iap") == pasted(PROXY)
    assert access.proxy(place, "ssh") is None


# --- the wait ---------------------------------------------------------------------------------------------


def test_the_wait_has_the_users_name_among_its_facts(gcp_project: Project) -> None:
    gcp_project.bucket()
    gcp_project.head()
    gcp_project.report("controller", "ready")
    wish = WaitRequest.of(gcp_design(project="p-1"), BUCKET)
    facts = boots.Waiter(wish, cloud(gcp_project), print).facts()
    assert facts == {"host_keys": [KEY], "login_user": USER, "scheduler_version": "slurm 23.11.4"}


def test_a_machine_that_boots_anew_is_asked_for_its_new_report(gcp_project: Project) -> None:
    """A report from before the machine's last start belongs to another boot."""
    gcp_project.bucket()
    gcp_project.head()
    gcp_project.report("controller", "ready", started=time.time() - 3600)
    gcp_project.objects["current.json"] = (b"{}", time.time() - 7200)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        gcp_project.report("controller", "ready")

    wish = WaitRequest.of(gcp_design(project="p-1"), BUCKET)
    boots.Waiter(wish, cloud(gcp_project), print, sleep=pause).facts()
    assert len(pauses) == 1


def test_a_machine_that_does_not_report_is_looked_at_with_gcloud(gcp_project: Project) -> None:
    gcp_project.bucket()
    gcp_project.head()
    wish = WaitRequest.of(gcp_design(project="p-1"), BUCKET)
    line = f"gcloud compute instances get-serial-port-output c-controller --project p-1 --zone {ZONE}"
    with sentences.raises("boot.late", line):
        boots.Waiter(wish, cloud(gcp_project), print, seconds=0).facts()
