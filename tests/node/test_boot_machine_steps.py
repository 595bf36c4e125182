"""Tests of the steps of whole machines, with a folder as the root file system."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import re
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.bootstrap import (
    daemons,
    key_server,
    machine_steps,
    report_server,
    slurmd,
    step_runner,
    steps,
)
from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.report import BootReport, file_sink
from node.bootstrap.vm import disks, host_keys, users
from node.bootstrap.vm.clouds import local
from node.design.containers import Containers
from node.design.folders import Folders
from node.design.model import Host
from node.design.sites import AwsSite
from node.design.storage import Mount
from node.gcp import services
from node.slurm import in_force
from node.system import accounts
from tests.support import whole_boot
from tests.support.doubles import HEAD, FakeServices, design, settings

ME = pwd.getpwuid(os.getuid())
LOGIN = Host("login-0", "login", ("login",), "local.head", 0)
SHARED = (Mount("/home", "bind"), Mount("/apps", "bind"))


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """The folder that stands for `/`. Its path is short, because sockets are limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="own-") as folder:
        yield Path(folder)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes programs that record their calls in the file `calls`, and puts them first in PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in ("useradd", "scontrol", "wall"):
        program(folder, name, "")
    for name in ("slurmctld", "slurmd", "sinfo"):
        program(folder, name, "echo slurm-wlm 23.11.4")
    return folder


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/calls\n{script}\n')
    path.chmod(0o755)


def calls(tools: Path) -> list[str]:
    return (tools / "calls").read_text().splitlines() if (tools / "calls").exists() else []


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that the steps set. The real machine's name is not changed."""
    given: list[str] = []
    monkeypatch.setattr(socket, "sethostname", given.append)
    monkeypatch.setattr(socket, "gethostname", lambda: given[-1] if given else "before")
    return given


@pytest.fixture
def machine(
    tmp_path: Path, tools: Path, named: list[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Context]:
    """Makes a machine of a role before its boot, with the folders `root` and `secrets` (its secret store)."""
    # The owner of Slurm's and munge's files is this user, whoever it is.
    entry = dict.fromkeys(("slurm", "munge", "ada"), ME)
    monkeypatch.setattr(pwd, "getpwnam", lambda name: entry[name])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    whole_boot.keys_come_from(monkeypatch, tmp_path / "secrets" / "munge.key")
    monkeypatch.setattr(local, "SECRETS", str(tmp_path / "secrets"))
    (tmp_path / "secrets").mkdir(mode=0o700)
    root = tmp_path / "root"
    for folder in ("etc", "opt/slurm-stacks/current", "home", "apps"):
        (root / folder).mkdir(parents=True)
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")

    def make(
        role: str = "compute",
        host: str = "debug-0",
        mounts: Any = SHARED,
        fleet: Any = (HEAD,),
        secret: str | None = "munge.key",
        containers: Containers | None = None,
    ) -> Context:
        cluster_design = design(isolation="container", mounts=mounts, hosts=fleet, containers=containers)
        its = settings(
            root,
            cluster_design,
            user="slurm",
            shared=str(root / "home"),
            apps=str(root / "apps"),
            slurmctld_port=6817,
            slurmd_port=6818,
            controller_address="10.99.0.2",
            secret=secret,
        )
        report = BootReport(host, role, [file_sink(tmp_path / "report.json")])
        return Context(its, root / "settings.json", role, host, Folders(its), FakeServices(), report)

    return make


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- the first steps -------------------------------------------------------------------------------------


def test_both_kinds_of_machines_take_the_same_steps(machine: Callable[..., Context]) -> None:
    context = machine()
    assert steps.kind(context) is machine_steps
    for name in ("users", "hosts", "secrets", "mounts", "slurm", "ready"):
        assert callable(getattr(machine_steps, name))
        assert name in [step.name for step in steps.STEPS]


def test_missing_users_are_made_with_the_number_that_all_machines_have(
    machine: Callable[..., Context], tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine_steps.users(machine()) == "slurm and munge are there"
    assert calls(tools) == []
    monkeypatch.setattr(pwd, "getpwnam", lambda name: {"munge": ME}[name])
    assert machine_steps.users(machine()) == "made slurm"
    (call,) = calls(tools)
    assert call.startswith("useradd --system ")
    assert call.endswith(" --uid 64030 slurm")


def test_only_root_brings_a_machine_up(
    machine: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PermissionError, match="must run as root"):
        machine_steps.users(machine())


def test_the_machine_has_its_name_and_knows_the_others(
    machine: Callable[..., Context], tmp_path: Path, named: list[str]
) -> None:
    root = tmp_path / "root"
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n10.99.1.0 debug-0\n")
    for _ in range(2):
        assert machine_steps.hosts(machine()).startswith("debug-0.t.slurm-stacks.internal at ")
        assert named == ["debug-0"]
    assert (root / "etc" / "hostname").read_text() == "debug-0\n"
    names = [line.split() for line in (root / "etc" / "hosts").read_text().splitlines()]
    assert names[0] == ["127.0.0.1", "localhost"], "the maker's stays"
    assert len([line for line in names if "debug-0" in line]) == 1, "of the machine's own there is one"
    assert ["10.99.0.2", "localhost.t.slurm-stacks.internal", "localhost"] in names


# --- secrets ---------------------------------------------------------------------------------------------


@pytest.fixture
def no_sshd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_keys, "SSHD", Path("/nonexistent/sshd"))


@pytest.mark.usefixtures("no_sshd")
def test_the_controller_makes_the_key_and_others_take_it(
    machine: Callable[..., Context], tmp_path: Path
) -> None:
    key = tmp_path / "root" / "etc" / "munge" / "munge.key"
    key.parent.mkdir()
    key.write_bytes(b"p" * 128)  # the key of the package
    controller = machine("controller", "controller")
    assert machine_steps.secrets(controller) == "made the munge key"
    servers = controller.services.started  # type: ignore[attr-defined]
    assert [(server.name, server.user) for server in servers] == [
        (key_server.NAME, None),
        (report_server.NAME, None),
    ], "root begins both, for their ports"
    made = key.read_bytes()
    assert len(made) == 1024
    kept = tmp_path / "secrets" / "munge.key"
    assert kept.read_bytes() == made
    assert (mode(key), mode(key.parent), mode(kept)) == (0o400, 0o700, 0o600)
    key.unlink()
    assert machine_steps.secrets(machine()) == "took the cluster's munge key"
    assert key.read_bytes() == made
    assert mode(key) == 0o400
    # A replaced controller has an empty disk. A new key would lock out all other machines.
    key.unlink()
    assert machine_steps.secrets(machine("controller", "controller")) == "took the cluster's munge key"
    assert key.read_bytes() == made


@pytest.mark.usefixtures("no_sshd")
def test_a_machine_waits_for_the_controllers_key(
    machine: Callable[..., Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_steps, "KEY_PAUSE_SECONDS", 0.05)
    secret = local.File(tmp_path / "secrets" / "munge.key")
    later = threading.Timer(0.3, secret.put, (b"k" * 1024,))
    later.start()
    try:
        assert machine_steps.secrets(machine()) == "took the cluster's munge key"
    finally:
        later.join()
    assert (tmp_path / "root" / "etc" / "munge" / "munge.key").read_bytes() == b"k" * 1024


@pytest.mark.usefixtures("no_sshd")
def test_a_key_that_never_comes_is_said_in_words(
    machine: Callable[..., Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {role: s.timeout for s in steps.STEPS if s.name == "secrets" for role in s.roles}
    assert set(limits) == {"controller", "login", "compute"}
    assert all(limits[role] > machine_steps.KEY_SECONDS[role] for role in ("login", "compute")), (
        "or these words are lost"
    )
    # Google names seven minutes. The controller waits longer, and a login machine waits for the controller.
    assert 7 * 60 < services.DENIED_SECONDS < machine_steps.KEY_SECONDS["login"]
    assert limits["controller"] > services.DENIED_SECONDS
    monkeypatch.setitem(machine_steps.KEY_SECONDS, "compute", 0.2)
    monkeypatch.setattr(machine_steps, "KEY_PAUSE_SECONDS", 0.05)
    words = r"given no munge key for 0\.2 s \(10\.99\.0\.2: has no key yet\): .*logs --stack test controller"
    with pytest.raises(TimeoutError, match=words):
        machine_steps.secrets(machine())
    assert not (tmp_path / "root" / "etc" / "munge").exists()


@pytest.mark.usefixtures("no_sshd")
def test_settings_without_a_secret_are_refused(machine: Callable[..., Context]) -> None:
    with pytest.raises(ValueError, match=r"no secret for the munge key \(site\.secret\)"):
        machine_steps.secrets(machine("controller", "controller", secret=None))


def test_host_keys_are_made_once_and_published(
    machine: Callable[..., Context], tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_keys, "SSHD", tools / "slurmd")  # whatever is there
    program(
        tools,
        "ssh-keygen",
        f'echo "ssh-ed25519 AAA" >{tmp_path}/root/etc/ssh/ssh_host_ed25519_key.pub',
    )
    (tmp_path / "root" / "etc" / "ssh").mkdir()
    for _ in range(2):
        context = machine("controller", "controller")
        machine_steps.secrets(context)
        assert context.report.content["host_keys"] == ["ssh-ed25519 AAA"]
    assert [call.split()[0] for call in calls(tools)].count("ssh-keygen") == 1


@pytest.mark.usefixtures("no_sshd")
def test_without_a_server_there_are_no_host_keys(machine: Callable[..., Context]) -> None:
    context = machine("controller", "controller")
    machine_steps.secrets(context)
    assert context.report.content["host_keys"] == []


def test_how_a_program_is_started_as_a_user() -> None:
    assert accounts.start_as(None) == {}
    identity = accounts.start_as(ME.pw_name)
    assert (identity["user"], identity["group"]) == (ME.pw_uid, ME.pw_gid)


# --- mounts ----------------------------------------------------------------------------------------------


def test_shared_folders_are_there_from_the_beginning(
    machine: Callable[..., Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    mounted: dict[str, tuple[str, str]] = {}
    monkeypatch.setattr(disks, "mounted", mounted.get)
    with pytest.raises(FileNotFoundError, match=r"/home: the machine was started without this folder"):
        machine_steps.mounts(machine())
    mounted |= {f"{root}/home": ("ext4", "/dev/vda"), f"{root}/apps": ("ext4", "/dev/vda")}
    assert machine_steps.mounts(machine()) == "/home and /apps"
    assert not (root / "home" / "bench").exists(), "the controller makes it"
    machine_steps.mounts(machine("controller", "controller"))
    assert mode(root / "home" / "bench") == 0o1777


def test_storage_that_is_not_here_is_named(machine: Callable[..., Context]) -> None:
    with pytest.raises(
        ValueError, match=r"/fsx: storage of kind fsx_lustre is not on this provider \(.*bind"
    ):
        machine_steps.mounts(machine(mounts=(Mount("/fsx", "fsx_lustre"),)))
    elsewhere = Mount("/fsx", "fsx_lustre", roles=("compute",))
    assert machine_steps.mounts(machine("login", "login-0", mounts=(elsewhere,))) == "nothing to mount"


def test_a_mount_that_is_missing_is_in_the_report(machine: Callable[..., Context], tmp_path: Path) -> None:
    (step,) = [step for step in steps.STEPS if step.name == "mounts"]
    assert step_runner.run_steps(machine(), [step]) is False
    (only,) = json.loads((tmp_path / "report.json").read_text())["steps"]
    assert "the machine was started without this folder" in only["note"]


# --- slurm -----------------------------------------------------------------------------------------------


def test_the_controller_has_folders_configuration_and_programs(
    machine: Callable[..., Context], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    before = os.umask(0o077)
    try:
        for _ in range(2):
            assert machine_steps.slurm(machine("controller", "controller")) == "slurm-wlm 23.11.4"
    finally:
        os.umask(before)
    text = (root / "etc" / "slurm" / "slurm.conf").read_text()
    assert "SlurmUser=slurm" in text
    assert "enable_configless" in text
    assert "for Slurm 23.11" in text
    assert (root / "etc" / "slurm" / "cgroup.conf").exists()
    found = {name: mode(root / name) for name in ("etc/slurm", "var/log/slurm", "run/slurm-stacks")}
    assert set(found.values()) == {0o755}, "users' clients read these"
    assert mode(root / "etc" / "slurm" / "slurm.conf") == 0o644
    assert mode(root / "var" / "spool" / "slurmctld") == 0o700
    assert (root / "var" / "lib" / "slurm-stacks" / "elastic" / "requests").is_dir()
    assert (root / "opt" / "slurm-stacks" / "current" / "bin" / "resume").exists()
    tool = root / "usr" / "local" / "bin" / "slurm-stacks"
    assert tool.resolve() == root / "opt" / "slurm-stacks" / "current" / "bin" / "slurm-stacks"
    assert tool.stat().st_mode & 0o111
    drafts = [path for path in root.rglob(".*") if path.is_file()]
    assert drafts == []


def test_slurms_files_are_slurms(
    machine: Callable[..., Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, int] = {}
    numbers = {"slurm": 4711, "munge": 4712, "ada": 4713}
    monkeypatch.setattr(
        pwd, "getpwnam", lambda n: pwd.struct_passwd((n, "x", numbers[n], numbers[n], "", "/", "/bin/sh"))
    )

    def own(handle: int, user: int, _group: int) -> None:
        name = Path(f"/proc/self/fd/{handle}").readlink().name
        given[re.sub(r"^\.(.+)\.[0-9a-f]{16}$", r"\1", name)] = user

    monkeypatch.setattr(os, "fchown", own)
    machine_steps.slurm(machine("controller", "controller"))
    assert {"slurmctld", "slurm-stacks", "slurm", "elastic", "requests"} == {
        n for n, user in given.items() if user == 4711
    }
    given.clear()
    machine_steps.slurm(machine())
    assert "slurmd" not in given, "slurmd is root's"


def test_a_login_machine_has_slurm_conf_and_the_tool_and_no_state(
    machine: Callable[..., Context], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    assert machine_steps.slurm(machine("login", "login-0")) == "slurm-wlm 23.11.4"
    assert "SlurmctldHost=localhost(10.99.0.2)" in (root / "etc" / "slurm" / "slurm.conf").read_text()
    assert (root / "usr" / "local" / "bin" / "slurm-stacks").exists()
    assert not (root / "var" / "spool" / "slurmctld").exists()
    assert not (root / "opt" / "slurm-stacks" / "current" / "bin" / "resume").exists()


@pytest.mark.parametrize("readable", [True, False])
def test_a_login_machine_has_no_option_that_clients_cannot_read(
    machine: Callable[..., Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    context = machine("login", "login-0")
    its = in_force.Given({"KillWait": "45"}).put_in(context.settings)
    asked: list[str] = []

    def slurm(_context: Context, *command: str, conf: str) -> str:
        asked.append(Path(conf).read_text())
        assert command[:2] == ("scontrol", "show")
        if not readable:
            raise CommandError("scontrol: fatal: Unable to process configuration file", 1)
        return ""

    monkeypatch.setattr(Context, "slurm", slurm)
    machine_steps.slurm(dataclasses.replace(context, settings=its))
    text = (tmp_path / "root" / "etc" / "slurm" / "slurm.conf").read_text()
    assert ("KillWait=45" in text) == readable
    assert ["KillWait=45" in tried for tried in asked] == [True]
    machine_steps.slurm(context)
    assert len(asked) == 1, "nothing is tried where nothing is given"


def test_a_node_renders_nothing_and_finds_what_slurmd_fetches(
    machine: Callable[..., Context], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "etc" / "slurm").mkdir()
    (root / "etc" / "slurm" / "slurm.conf").write_text("of another cluster")
    assert machine_steps.slurm(machine()) == "slurm-wlm 23.11.4, configured by the controller"
    link = root / "etc" / "slurm" / "slurm.conf"
    assert str(link.readlink()) == f"{root}/var/spool/slurmd/conf-cache/slurm.conf"
    assert machine_steps.slurm(machine()) == "slurm-wlm 23.11.4, configured by the controller"


def test_a_node_has_a_folder_for_its_users_containers_only_where_there_are_containers(
    machine: Callable[..., Context], tmp_path: Path
) -> None:
    folder = tmp_path / "root" / "run" / "slurm-stacks" / "oci"
    machine_steps.slurm(machine())
    assert not folder.exists()
    machine_steps.slurm(machine(containers=Containers("oci")))
    assert mode(folder) == 0o1777


def test_a_machine_without_slurm_says_so(
    machine: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(machine_steps.PROGRAM, "compute", "no-such-slurmd")
    with pytest.raises(FileNotFoundError, match="no-such-slurmd is not installed on this machine"):
        machine_steps.slurm(machine())


# --- ready -----------------------------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons that work as soon as they are started."""
    monkeypatch.setattr(daemons, "wait", lambda *_arguments: None)
    monkeypatch.setattr(daemons, "check_port", lambda *_arguments: None)
    monkeypatch.setattr(slurmd, "start_delay", lambda *_arguments: 0.0)


def started(context: Context) -> list[tuple[str, str | None]]:
    assert isinstance(context.services, FakeServices)
    return [(service.name, service.user) for service in context.services.started]


def ready(context: Context) -> str:
    context.report.content["facts"]["slurm"] = "slurm-wlm 23.11.4"
    return machine_steps.ready(context)


@pytest.mark.usefixtures("at_once")
def test_each_roles_daemons_and_who_runs_them(
    machine: Callable[..., Context], tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_keys, "SSHD", tools / "slurmd")
    with_login = (HEAD, LOGIN)
    controller = machine("controller", "controller", fleet=with_login)
    assert ready(controller) == "started munged, the name server, slurmctld and the elastic daemon"
    assert started(controller) == [
        ("munged", "munge"),
        ("names", None),
        ("elastic", "slurm"),
        ("slurmctld", "slurm"),
    ]
    login = machine("login", "login-0", fleet=with_login)
    assert ready(login) == "started munged"
    assert started(login) == [("munged", "munge")]
    compute = machine()
    assert ready(compute) == "started munged, slurmd"
    assert started(compute) == [("munged", "munge"), ("slurmd", None)]
    only = machine("controller", "controller")
    assert ready(only) == "started munged, the name server, slurmctld and the elastic daemon", (
        "people log in here"
    )


@pytest.mark.usefixtures("at_once", "no_sshd")
def test_who_made_the_machines_is_at_home_where_all_see_it(
    machine: Callable[..., Context], tmp_path: Path
) -> None:
    for _ in range(2):
        ready(machine())
    line = (tmp_path / "root" / "etc" / "passwd").read_text()
    assert line == "root:x:0:0:root:/home/root:/bin/bash\n"


@pytest.mark.usefixtures("at_once", "no_sshd")
def test_who_made_the_machines_gets_a_key_for_ssh_to_the_nodes(
    machine: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, str]] = []
    monkeypatch.setattr(
        users, "keys_if_possible", lambda context, entry: made.append((context.role, entry.pw_dir))
    )
    ready(machine("login", "login-0", fleet=(HEAD, LOGIN)))
    ready(machine())
    assert made == []
    ready(machine("controller", "controller"))
    assert made == [("controller", "/home/root")]


@pytest.mark.usefixtures("at_once", "no_sshd")
def test_a_slurmd_asks_the_controller_for_its_configuration(machine: Callable[..., Context]) -> None:
    context = machine()
    assert ready(context) == "started munged, slurmd"
    assert isinstance(context.services, FakeServices)
    slurmd = context.services.started[-1]
    # -b is needed, because a container has its host's uptime, which is older than the request for the node.
    assert slurmd.argv == (
        "/usr/sbin/slurmd", "-D", "-b", "-N", "debug-0", "--conf-server", "10.99.0.2:6817",
    )  # fmt: skip
    its = dataclasses.replace(context.settings.design, isolation="vm", provider="aws")
    site = dataclasses.replace(context.settings.site, cloud=AwsSite())
    context.settings = dataclasses.replace(context.settings, design=its, site=site)
    ready(context)
    assert "-b" not in context.services.started[-1].argv, "a slurmd that starts again has not rebooted"


@pytest.mark.usefixtures("at_once", "no_sshd")
def test_munge_finds_its_folders_as_it_wants_them(machine: Callable[..., Context], tmp_path: Path) -> None:
    ready(machine())
    found = {name: mode(tmp_path / "root" / name) for name in ("run/munge", "var/lib/munge", "var/log/munge")}
    assert found == {"run/munge": 0o755, "var/lib/munge": 0o700, "var/log/munge": 0o700}


# --- a whole boot ----------------------------------------------------------------------------------------


def test_an_older_report_of_the_name_is_not_this_machines(tmp_path: Path) -> None:
    from node.bootstrap.report import failure

    file = tmp_path / "debug-0.json"
    report = BootReport("debug-0", "compute", [file_sink(file)])
    report.begin("mounts", 1)
    report.end("failed", 0.1, "it broke")
    report.finish("failed")
    assert failure(file) == failure(file, time.time() - 60) == "step mounts: it broke"
    assert failure(file, time.time() + 60) is None
