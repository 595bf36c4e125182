"""Tests of a machine on Google Cloud: its name, report, disks and users, and a whole boot."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.bootstrap import machine_steps, step_runner, steps
from node.bootstrap.context import Context
from node.bootstrap.report import BootReport, file_sink
from node.bootstrap.systemd_services import SystemdServices
from node.bootstrap.vm import clouds, disks, machine, mounts, os_login
from node.bootstrap.vm.clouds import gcp
from node.bootstrap.vm.first_login import PROGRAM as LOGIN_PROGRAM
from node.design.model import Hook, Network
from node.design.storage import Mount
from node.system import http_client
from tests.support import whole_boot
from tests.support.checkout import until
from tests.support.fake_metadata import FakeMetadata, environment, fake_metadata
from tests.support.recorded import GCP_DRIVER, NFS, Recorder, gcp_machine
from tests.support.recorded import machine as make
from tests.support.sshd import PRIVILEGE_SEPARATION

SCRATCH = (Mount("/local_scratch", "nvme", roles=("compute",), options="noatime,nofail"),)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with whole_boot.short_folder() as folder:
        yield folder


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMetadata]:
    monkeypatch.setattr(http_client, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(http_client, "LONGEST_PAUSE_SECONDS", 0.01)
    with fake_metadata() as fake:
        for name, value in environment(fake).items():
            monkeypatch.setenv(name, value)
        yield fake


# --- its name and its report -------------------------------------------------------------------------------


def test_a_node_is_named_by_its_instance(google: FakeMetadata, tmp_path: Path) -> None:
    context, _ = gcp_machine(tmp_path)
    host, sink, services = machine.begin(context.settings, None, "gs://t-bucket")
    assert (host, type(services)) == ("compute-3", SystemdServices)
    sink('{"state": "booting"}')
    assert json.loads(google.objects["boot/compute-3.json"]) == {"state": "booting"}
    google.change(name="other-compute-3")
    with pytest.raises(
        SystemExit, match=r"other-compute-3 does not belong to the cluster t: this machine cannot know"
    ):
        machine.begin(context.settings, None, "gs://t-bucket")


def test_the_head_is_told_its_name(google: FakeMetadata, tmp_path: Path) -> None:
    context, _ = gcp_machine(tmp_path, "controller", "controller")
    assert machine.begin(context.settings, "controller", "gs://t-bucket")[0] == "controller"
    assert google.asked == []


def timers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)}


def test_a_report_is_written_once_a_second_and_the_last_one_counts(
    google: FakeMetadata, tmp_path: Path
) -> None:
    """Cloud Storage refuses a second write within a second, but a boot's first steps take milliseconds."""
    context, _ = gcp_machine(tmp_path)
    others = timers()
    _, sink, _ = machine.begin(context.settings, "compute-3", "gs://t-bucket")
    report = BootReport("compute-3", "compute", [file_sink(tmp_path / "own.json"), sink])
    for name in ("users", "hosts", "secrets"):
        report.begin(name, 30)
        report.end("done", 0.0)

    def told() -> list[str]:
        return [step["name"] for step in json.loads(google.objects["boot/compute-3.json"])["steps"]]

    until(lambda: told() == ["users", "hosts", "secrets"], 60, "the report of all steps")
    report.begin("ready", 30)
    report.finish("ready")
    assert json.loads(google.objects["boot/compute-3.json"])["state"] == "ready", (
        "at once: it may be switched off"
    )
    # The first report is written at once, all others later and together. Otherwise eight would take seconds.
    times = [at for at, _ in google.written]
    assert len(times) >= 3
    assert min(b - a for a, b in itertools.pairwise(times)) > 0.9
    until(lambda: timers() <= others, 60, "the end of the last pause")


def test_a_bucket_that_refuses_does_not_stop_a_boot(google: FakeMetadata, tmp_path: Path) -> None:
    context, _ = gcp_machine(tmp_path)
    _, sink, _ = machine.begin(context.settings, "compute-3", "gs://none-such")
    report = BootReport("compute-3", "compute", [file_sink(tmp_path / "own.json"), sink])
    report.begin("users", 30)
    report.finish("failed")
    assert json.loads((tmp_path / "own.json").read_text())["state"] == "failed"
    assert report.content["facts"]["report"].startswith(
        "not published: gs://none-such/boot/compute-3.json: it does"
    )


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return whole_boot.name_is_noted(monkeypatch, "t-compute-0")


def test_the_image_gives_no_other_name_later(tmp_path: Path, named: list[str]) -> None:
    context, run = gcp_machine(tmp_path)
    assert (
        machine_steps.hosts(context)
        == "compute-0.t.slurm-stacks.internal at 10.0.1.17; the controller knows the others"
    )
    assert named == ["compute-0"]
    (aside,) = run.having("dpkg-divert")
    assert aside.endswith(
        "--rename --divert /usr/bin/google_set_hostname.distrib --add /usr/bin/google_set_hostname"
    )


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_boot.users_are_me(monkeypatch)


@pytest.mark.usefixtures("users")
def test_the_head_fills_the_secret_and_a_node_has_the_key_of_the_head(
    google: FakeMetadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, _ = gcp_machine(tmp_path / "head", "controller", "controller")
    node, _ = gcp_machine(tmp_path / "node")
    whole_boot.keys_come_from(monkeypatch, tmp_path / "head/root/etc/munge/munge.key")
    assert machine_steps.secrets(head) == "made the munge key"
    assert machine_steps.secrets(node) == "took the cluster's munge key"
    made, taken = ((tmp_path / name / "root/etc/munge/munge.key").read_bytes() for name in ("head", "node"))
    assert google.versions == [made]
    assert made == taken
    assert len(made) == 1024


def test_hooks_of_the_clouds_own_bucket(google: FakeMetadata, tmp_path: Path) -> None:
    context, _ = gcp_machine(
        tmp_path, hooks=(Hook("all", "gs://t-bucket/hooks/a.sh"), Hook("all", "s3://b/x.sh"))
    )
    google.objects["hooks/a.sh"] = f"#!/bin/sh\necho $SLURM_STACKS_HOST >{tmp_path}/ran\n".encode()
    with pytest.raises(ValueError, match=r"s3://b/x\.sh: machines of provider gcp cannot fetch that"):
        steps.hooks(context)
    assert (tmp_path / "ran").read_text() == "compute-0\n"


# --- disks and mounts ----------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disks, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(disks, "ATTACH_SECONDS", 0.1)
    whole_boot.nothing_is_mounted(monkeypatch, tmp_path)


def disk(folder: Path, name: str) -> Path:
    link = folder / "root" / "dev/disk/by-id" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    target = folder / "root" / "dev" / f"of-{name}"
    target.write_bytes(bytes(8192))
    link.symlink_to(target)
    return link


@pytest.mark.usefixtures("quick")
def test_disks_are_known_by_their_device_names(tmp_path: Path) -> None:
    other = {**GCP_DRIVER, "mounts": {"/apps": {"device": "/dev/disk/by-id/google-software"}}}
    context, _ = gcp_machine(tmp_path, "controller", "controller", driver=other)
    disk(tmp_path, "google-persistent-disk-0")
    home = disk(tmp_path, "google-slurm-stacks-home")
    with pytest.raises(
        TimeoutError, match=r"/apps: disk software was not attached to this machine for 0\.1 s"
    ):
        disks.prepare(context)
    apps = disk(tmp_path, "google-software")
    assert disks.prepare(context) == f"/home: made ext4 on {home}; /apps: made ext4 on {apps}"


@pytest.mark.usefixtures("quick")
def test_local_ssds_become_one_array(tmp_path: Path) -> None:
    context, run = gcp_machine(tmp_path, mounts=SCRATCH)
    with pytest.raises(FileNotFoundError, match="no disks of its own"):
        disks.prepare(context)
    disk(tmp_path, "google-persistent-disk-0")
    own_disks = [str(disk(tmp_path, f"google-local-nvme-ssd-{number}")) for number in (10, 2)]
    disk(tmp_path, "google-local-nvme-ssd-2-part1")
    array = tmp_path / "root" / disks.ARRAY

    def create(*_argv: str) -> str:
        array.parent.mkdir(parents=True)
        array.write_bytes(bytes(8192))
        return ""

    run.answer("mdadm --create", create)
    assert disks.prepare(context) == f"/local_scratch: made ext4 on {array}"
    (made,) = run.having("--create")
    assert made.endswith(f"--raid-devices=2 --run --homehost=any {own_disks[1]} {own_disks[0]}")


@pytest.mark.usefixtures("quick")
def test_filestore_is_mounted_and_other_clouds_storage_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "_reach", lambda *_server: None)
    where = {**GCP_DRIVER, "mounts": {"/data": {"source": "10.0.0.2:/share"}}}
    context, run = gcp_machine(
        tmp_path, mounts=(*NFS, Mount("/data", "filestore", options="rw,hard")), driver=where
    )
    machine_steps.mounts(context)
    assert f"mount -t nfs -o rw,hard 10.0.0.2:/share {tmp_path}/root/data" in run.calls
    efs, _ = gcp_machine(tmp_path, mounts=(Mount("/x", "efs"),))
    with pytest.raises(ValueError, match=r"storage of kind efs is not on this provider \(.*filestore"):
        machine_steps.mounts(efs)


# --- users ---------------------------------------------------------------------------------------------


def oslogin(folder: Path) -> None:
    """Does what the guest agent does."""
    etc = folder / "root" / "etc"
    (etc / "pam.d").mkdir(parents=True, exist_ok=True)
    (etc / "nsswitch.conf").write_text("passwd:  files systemd cache_oslogin oslogin\ngroup: files systemd\n")
    (etc / "pam.d" / "sshd").write_text("@include common-auth\nsession optional pam_motd.so\n")


def test_people_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, _ = gcp_machine(tmp_path)
    monkeypatch.setattr(os_login, "AGENT_SECONDS", 0.05)
    monkeypatch.setattr(os_login, "POLL_SECONDS", 0.01)
    (tmp_path / "root/etc/nsswitch.conf").write_text("passwd: files systemd\ngroup: files oslogin\n")
    with pytest.raises(
        TimeoutError, match=r"OS Login is not set up .*google-guest-agent.*enable-oslogin TRUE"
    ):
        os_login.prepare_os_login(context)
    oslogin(tmp_path)
    os_login.prepare_os_login(context)
    assert not (tmp_path / "root" / LOGIN_PROGRAM).exists(), "nobody's first login is on a node"


def first_login(tmp_path: Path, *, mounted: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs the program that PAM calls for one of our users. Commands that need root or a mount are fakes."""
    context, _ = gcp_machine(tmp_path, "controller", "controller")
    oslogin(tmp_path)
    os_login.prepare_os_login(context)
    tools = tmp_path / "bin"
    tools.mkdir(exist_ok=True)
    shared = context.settings.site.shared
    own_tools = {
        "getent": f"echo ada_example_com:x:4711:4712::{shared}/ada_example_com:/bin/bash",
        "mountpoint": "exit 0" if mounted else "exit 1",
        "mkhomedir_helper": f"echo $1 >>{tmp_path}/homes; mkdir {shared}/$1",
        "setpriv": f'echo "$*" | cut -d/ -f1 | head -1 >>{tmp_path}/became\n'
        'while [ "$1" != /bin/sh ]; do shift; done\nexec "$@"',
    }
    for name, text in own_tools.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    program = tmp_path / "first-login"
    text = (tmp_path / "root" / LOGIN_PROGRAM).read_text()
    assert text.count("PATH=/usr/sbin") == 1
    program.write_text(text.replace("PATH=/usr/sbin", f"PATH={tools}:/usr/sbin"))
    return subprocess.run(
        ["/bin/sh", str(program)], env={"PAM_TYPE": "open_session", "PAM_USER": "ada_example_com"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def sshd_of(tmp_path: Path, address: str) -> str:
    """Returns where the real sshd looks for the keys of a user who connects from an address."""
    root = tmp_path / "root"
    PRIVILEGE_SEPARATION.mkdir(exist_ok=True)  # sshd wants it even to print its configuration
    key = tmp_path / "host-key"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    main = tmp_path / "sshd_config"
    # The begin and the rest of Ubuntu's file.
    main.write_text(f"Include {root}/etc/ssh/sshd_config.d/*.conf\nAuthorizedKeysFile .ssh/authorized_keys\n")
    result = subprocess.run(
        ["/usr/sbin/sshd", "-T", "-f", str(main), "-h", str(key), "-C", f"user=ada,host=h,addr={address}"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("authorizedkeysfile ")]
    return line.partition(" ")[2]


@pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="openssh-server is not installed")
@pytest.mark.parametrize("role", ["controller", "login"])
def test_keys_in_files_let_nobody_in_from_outside(tmp_path: Path, role: str) -> None:
    """Keys in files never expire. OS Login's keys do, and each login checks whether the user may log in."""
    host = "controller" if role == "controller" else "login-0"
    context, run = gcp_machine(tmp_path, role, host, network=Network(cidr="10.7.0.0/16"))
    oslogin(tmp_path)
    for _ in range(2):
        os_login.prepare_os_login(context)
    assert run.calls.count("systemctl try-reload-or-restart ssh.service") == 1, "again only for another text"
    proxy, world, node = "35.235.240.9", "203.0.113.9", "10.7.1.2"
    assert [sshd_of(tmp_path, address) for address in (proxy, world)] == ["none", "none"]
    assert sshd_of(tmp_path, node) == ".ssh/authorized_keys", "from one machine of the cluster to another"


@pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="openssh-server is not installed")
def test_in_an_existing_network_no_address_is_the_clusters_alone(tmp_path: Path) -> None:
    context, _ = gcp_machine(tmp_path, "controller", "controller", network=Network(vpc="corp"))
    oslogin(tmp_path)
    os_login.prepare_os_login(context)
    assert sshd_of(tmp_path, "10.7.1.2") == "none"


def test_nodes_let_in_who_comes_from_the_cluster(tmp_path: Path) -> None:
    context, run = gcp_machine(tmp_path)
    oslogin(tmp_path)
    os_login.prepare_os_login(context)
    assert not (tmp_path / "root" / os_login.SSHD).exists()
    assert run.calls == []


def test_a_first_login_makes_a_home_and_a_key_once(tmp_path: Path) -> None:
    for _ in range(2):
        done = first_login(tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    folder = tmp_path / "root/home/ada_example_com/.ssh"
    public = (folder / "id_slurm_stacks.pub").read_text()
    assert public.split()[2] == "ada_example_com@t"
    assert (folder / "authorized_keys").read_text() == public
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "authorized_keys").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "homes").read_text() == "ada_example_com\n"
    assert (tmp_path / "became").read_text().split() == [
        "--reuid",
        "4711",
        "--regid",
        "4712",
        "--init-groups",
        "--reset-env",
    ]
    pam = (tmp_path / "root/etc/pam.d/sshd").read_text()
    assert pam.count("pam_exec.so quiet /usr/local/lib/slurm-stacks/first-login") == 1
    # No line before it may have taken variables from a file of the user's.
    assert pam.endswith("# slurm-stacks: end\n@include common-auth\nsession optional pam_motd.so\n")
    # A user's own keys stay.
    (folder / "id_slurm_stacks.pub").unlink()
    (folder / "authorized_keys").write_text("ssh-ed25519 AAAA own\n")
    first_login(tmp_path)
    lines = (folder / "authorized_keys").read_text().splitlines()
    assert (len(lines), lines[0]) == (2, "ssh-ed25519 AAAA own")


def test_before_the_shared_disk_is_there_nothing_is_made(tmp_path: Path) -> None:
    assert first_login(tmp_path, mounted=False).returncode == 0
    assert not (tmp_path / "root/home/ada_example_com").exists()


# --- a whole boot --------------------------------------------------------------------------------------


@pytest.fixture
def ubuntu(
    google: FakeMetadata,
    tmp_path: Path,
    named: list[str],
    users: None,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[Context, Recorder]]:
    """Machines whose commands are recorded and whose daemons are not waited for."""
    whole_boot.nothing_is_waited_for(monkeypatch)
    whole_boot.keys_come_from(monkeypatch, tmp_path / "controller/root/etc/munge/munge.key")

    def machine_of(role: str, host: str) -> tuple[Context, Recorder]:
        context, run = gcp_machine(tmp_path / host, role, host)
        oslogin(tmp_path / host)
        for name in ("home", "apps"):
            disk(tmp_path / host, f"google-slurm-stacks-{name}")
        whole_boot.begun(context, tmp_path / host, "gs://t-bucket")
        return context, run

    return machine_of


def test_all_steps_of_a_head_and_of_a_node(
    google: FakeMetadata, ubuntu: Callable[..., tuple[Context, Recorder]], tmp_path: Path
) -> None:
    head, run = ubuntu("controller", "controller")
    assert step_runner.run_steps(head, whole_boot.steps(head)) is True
    report = json.loads(google.objects["boot/controller.json"])
    assert (report["state"], report["facts"]["slurm"]) == ("ready", "slurm-wlm 23.11.4")
    assert {step["state"] for step in report["steps"]} == {"done", "skipped"}
    assert (tmp_path / "controller/root" / LOGIN_PROGRAM).exists(), (
        "people log in on the head, for there is no pool"
    )
    assert "exportfs -ra" in run.calls
    node, _ = ubuntu("compute", "compute-0")
    node.report.content["facts"]["slurm"] = "slurm-wlm 23.11.4"
    assert step_runner.run_steps(node, whole_boot.steps(node)) is True
    report = json.loads(google.objects["boot/compute-0.json"])
    assert report["state"] == "ready"
    ready = next(step for step in report["steps"] if step["name"] == "ready")
    assert ready["note"].endswith("slurmd, the watch for notices")
    slurmd, watch = node.services.started[-2:]  # type: ignore[attr-defined]
    assert slurmd.argv[:5] == ("/usr/sbin/slurmd", "-D", "-N", "compute-0", "--conf-server")
    assert watch.name == "notices"


def test_a_provider_without_machines_is_said(tmp_path: Path) -> None:
    context, _ = make(tmp_path, provider="azure")
    with pytest.raises(
        ValueError, match=r"provider 'azure' has no machines of a cloud's; known: aws, gcp, local"
    ):
        clouds.of(context.settings)
    assert isinstance(clouds.of(gcp_machine(tmp_path)[0].settings), gcp.Gcp)
