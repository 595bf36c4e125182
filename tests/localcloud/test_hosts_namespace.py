"""A machine's own /etc/hosts and host name, which nobody outside of its namespace sees."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.program.stack import Stack
from localcloud import addresses, hosts_namespace
from localcloud.machines import has_hosts_namespace, set_hosts_namespace
from node.design.folders import Folders
from operations.local import namespaces
from operations.local.run_directory import RunDirectory
from tests.support.checkout import until
from tests.support.doubles import settings
from tests.support.ordinary_user import OrdinaryUser
from tests.support.private_mounts import PrivateMounts

OURS = "127.9.64.1 controller\n127.9.65.0 debug-0\n127.9.65.1 debug-1\n"
OUR_BEGIN = hosts_namespace.BEGIN.strip()
OUR_SLURM = "ClusterName=ours\n"
PYTHON = [sys.executable, "-I", "-S"]
NOT_BY_NAME = (
    "nodes do not know each other by name here, they share this host's /tmp, and programs without SLURM_CONF "
    "do not know the cluster; all else works: "
)
REFUSED = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
"""Runs a command as the root of a container that may not make namespaces."""

needs_views = pytest.mark.skipif(
    (_problem := namespaces.unsupported_reason("127.9.64.0")) is not None,
    reason=f"no hosts namespaces here: {_problem}",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder `cloud` of a run directory, beside that of slurm.conf."""
    made = tmp_path / "run" / "cloud"
    made.mkdir(parents=True)
    (made / "hosts").write_text(OURS)
    (made.parent / "etc").mkdir()
    (made.parent / "etc" / "slurm.conf").write_text(OUR_SLURM)
    return made


def inside(folder: Path, *argv: str, name: str = "debug-0") -> list[str]:
    return [*PYTHON, hosts_namespace.__file__, str(folder), name, "--exec", *argv]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


# --- files -----------------------------------------------------------------------------------------------


def test_the_hosts_names_stay_and_the_clusters_come_last() -> None:
    host = "127.0.0.1 localhost\n# debug-0\n10.0.0.9 printer"
    assert hosts_namespace.merged(host, OURS) == f"{host}\n{hosts_namespace.BEGIN}{OURS}{hosts_namespace.END}"


def test_a_name_that_a_machine_has_leads_to_the_machine_alone() -> None:
    text = hosts_namespace.merged("10.0.0.5 controller # the real one\n10.0.0.6 box debug-1 lab\n", OURS)
    assert text.splitlines()[0] == "10.0.0.6 box lab"
    assert text.count("controller") == 1


def test_localhost_is_the_address_on_which_the_controllers_daemons_are_reached() -> None:
    """With IPv6 slurmctld would listen on `::1`, which the C library returns first."""
    text = hosts_namespace.merged(
        "127.0.0.1 localhost\n::1 localhost ip6-localhost\nfe80::1 localhost\n", OURS
    )
    assert text.splitlines()[:3] == ["127.0.0.1 localhost", "::1 ip6-localhost", OUR_BEGIN]


def test_a_cluster_that_is_brought_up_in_the_view_of_another_has_its_own_names_only() -> None:
    first = hosts_namespace.merged("127.0.0.1 localhost\n", OURS)
    other = "127.8.0.1 controller\n"
    assert hosts_namespace.merged(first, other) == hosts_namespace.merged("127.0.0.1 localhost\n", other)
    assert hosts_namespace.merged(first, OURS) == first


def test_the_file_that_machines_have_mounted_is_written_in_place(folder: Path) -> None:
    path = hosts_namespace.write_hosts(folder)
    before, written = path.stat(), path.read_text()
    (folder / "hosts").write_text(OURS + "127.9.65.2 debug-2\n")
    assert hosts_namespace.write_hosts(folder) == path
    assert path.stat().st_ino == before.st_ino
    assert path.read_text() == written.replace(
        hosts_namespace.END, f"127.9.65.2 debug-2\n{hosts_namespace.END}"
    )
    (folder / "hosts").write_text(OURS)
    hosts_namespace.write_hosts(folder)
    assert path.read_text() == written
    unchanged = path.stat().st_mtime_ns
    hosts_namespace.write_hosts(folder)
    assert path.stat().st_mtime_ns == unchanged
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hosts: files dns\n", None),
        ("hosts:\tfiles\n", None),
        ("passwd: sss files\n", None),
        ("# hosts: dns\n", None),
        (
            "hosts: mymachines resolve [!UNAVAIL=return] files myhostname dns # Arch\n",
            "hosts: files mymachines resolve [!UNAVAIL=return] myhostname dns\n",
        ),
        ("hosts:dns\n", "hosts: files dns\n"),
    ],
)
def test_etc_hosts_is_asked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: str | None
) -> None:
    host = tmp_path / "host"
    host.write_text(f"group: files\n{line}")
    monkeypatch.setattr(hosts_namespace, "SWITCH", host)
    path = hosts_namespace._write_switch(tmp_path)
    assert (path and path.read_text()) == (expected and f"group: files\n{expected}")


def test_without_an_nsswitch_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_namespace, "SWITCH", tmp_path / "none")
    assert hosts_namespace._write_switch(tmp_path) is None


# --- namespaces ------------------------------------------------------------------------------------------

ASK = """
import socket
print(socket.gethostname(), socket.gethostbyname("debug-1"), socket.gethostbyaddr("127.9.65.0")[0])
"""


@needs_views
def test_names_inside_and_nothing_outside(folder: Path) -> None:
    before = socket.gethostname(), Path("/etc/hosts").read_bytes(), Path("/proc/self/mounts").read_text()
    done = run(inside(folder, *PYTHON, "-c", ASK))
    assert (done.stdout, done.stderr) == ("debug-0 127.9.65.1 debug-0\n", "")
    assert run(inside(folder, "sh", "-c", "exit 7")).returncode == 7
    after = socket.gethostname(), Path("/etc/hosts").read_bytes(), Path("/proc/self/mounts").read_text()
    assert after[:2] == before[:2]
    assert str(folder.parent) not in after[2]


@needs_views
def test_slurms_programs_see_the_clusters_folder_and_the_hosts_stays(
    folder: Path, host: PrivateMounts
) -> None:
    """The host may be a node of another cluster."""
    host.run("sh", "-c", "mkdir -p /etc/slurm && echo ClusterName=theirs >/etc/slurm/slurm.conf")
    read = ["cat", "/etc/slurm/slurm.conf"]
    assert run(host(*inside(folder, *read))).stdout == OUR_SLURM
    assert host.run(*read) == "ClusterName=theirs\n"


@needs_views
def test_without_such_a_folder_machines_have_all_else(folder: Path, host: PrivateMounts) -> None:
    host.run("rm", "-rf", "/etc/slurm")
    done = run(host(*inside(folder, *PYTHON, "-c", f"{ASK}\nimport os; print(os.path.exists('/etc/slurm'))")))
    assert (done.stdout, done.stderr) == ("debug-0 127.9.65.1 debug-0\nFalse\n", "")


def test_a_host_without_the_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_namespace, "SLURM", tmp_path / "slurm")
    assert namespaces.no_slurm_folder() == (
        "programs that remove SLURM_CONF from their environment do not find the cluster here, and all else "
        f"works: this host has no folder {tmp_path}/slurm, in whose place they would see the cluster's; "
        f"as root: mkdir {tmp_path}/slurm"
    )
    (tmp_path / "slurm").mkdir()
    assert namespaces.no_slurm_folder() is None


@needs_views
def test_an_ordinary_user_stays_who_it_is(folder: Path) -> None:
    with contextlib.closing(OrdinaryUser(folder.parent, "games")) as user:
        done = run(user(*inside(folder, *PYTHON, "-c", f"{ASK}\nimport os; print(os.getuid(), os.getgid())")))
        if "lacks a part" in done.stderr:
            pytest.skip(done.stderr)
        assert done.stdout.splitlines() == ["debug-0 127.9.65.1 debug-0", f"{user.id} {user.group}"]
        newgrp = ["setpriv", f"--reuid={user.id}", "--regid=12", f"--groups={user.group}"]
        done = run(PrivateMounts.__call__(user, *newgrp, *inside(folder, "id", "-g")))
        assert done.stdout == f"{user.group}\n", "the cluster's, whose nodes know no other"
        # Programs that Python has started have no rights in their namespaces, like an ordinary user's.
        status = run(user(*inside(folder, "cat", "/proc/self/status"))).stdout
        assert "CapEff:\t0000000000000000" in status
        if hosts_namespace.SLURM.is_dir():
            assert run(user(*inside(folder, "cat", "/etc/slurm/slurm.conf"))).stdout == OUR_SLURM


def with_tmp(folder: Path, shared: list[Path], *argv: str) -> tuple[list[str], Path]:
    """Return a command in a namespace whose /tmp is a folder, and this folder."""
    tmp = folder.parent / "tmp" / "debug-0"
    tmp.mkdir(parents=True)
    (folder / hosts_namespace.SHARED_IN_TMP).write_text(json.dumps([str(path) for path in shared]))
    command = inside(folder, *argv)
    at = command.index("--exec")
    return [*command[:at], f"--tmp={tmp}", *command[at:]], tmp


@pytest.fixture
def in_tmp() -> Iterator[Path]:
    """A folder of this host's in /tmp."""
    path = Path(tempfile.mkdtemp(prefix="hosts-namespace-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@needs_views
def test_a_machines_tmp_has_what_all_see_at_its_path_and_nothing_else_of_the_hosts(
    folder: Path, in_tmp: Path
) -> None:
    home, data, other = in_tmp / "deep" / "home", in_tmp / "data.npz", in_tmp / "other"
    for made in (home / "inner", other):
        made.mkdir(parents=True)
    data.write_text("numbers\n")
    script = f"""
        find /tmp -mindepth 1 | sort
        echo mine >/tmp/own; echo changed >{home}/inner/file; cat {data}
        stat -c %a /tmp {in_tmp} {home}; ls {folder.parent}/tmp
    """
    outside = Path("/proc/self/mounts").read_text()
    command, tmp = with_tmp(folder, [home, home / "inner", data, in_tmp / "none"], "sh", "-c", script)
    tmp.chmod(0o1777)
    mask = os.umask(0o077)
    try:
        done = run(command)
    finally:
        os.umask(mask)
    assert done.stderr == ""
    assert done.stdout.split() == [
        *map(str, (in_tmp, data, home.parent, home, home / "inner")),
        "numbers", "1777", "755", oct(home.stat().st_mode)[-3:],
    ]  # fmt: skip
    assert (tmp / "own").read_text() == "mine\n"
    assert not Path("/tmp/own").exists()
    assert (home / "inner" / "file").read_text() == "changed\n", "the same folder, not a copy"
    assert list((tmp / in_tmp.name / "deep" / "home").iterdir()) == [], "a place for a mount alone"
    assert Path("/proc/self/mounts").read_text() == outside


@needs_views
def test_a_run_directory_in_tmp_is_always_there(in_tmp: Path) -> None:
    cloud = in_tmp / "run" / "cloud"
    for made in (cloud, cloud.parent / "etc"):
        made.mkdir(parents=True)
    (cloud / "hosts").write_text(OURS)
    command, tmp = with_tmp(cloud, [], "find", "/tmp", "-path", f"{cloud.parent}/*")
    done = run(command)
    # A machine's /tmp in itself would be an endless tree.
    assert done.stderr == ""
    found = set(map(Path, done.stdout.split()))
    assert {cloud, cloud / "hosts", tmp.parent} < found
    assert tmp not in found


@needs_views
def test_an_ordinary_users_machine_has_a_tmp_with_its_folders(folder: Path, in_tmp: Path) -> None:
    home = in_tmp / "home"
    home.mkdir()
    script = f"umask; touch /tmp/own {home}/own && find /tmp -mindepth 1 | sort; id -u"
    command, tmp = with_tmp(folder, [home], "sh", "-c", script)
    with contextlib.closing(OrdinaryUser(folder.parent, "games")) as user:
        user.own(in_tmp)
        # What is mounted in the folder comes along: the kernel lets no ordinary user leave it out.
        user.run(
            "sh", "-c", f"mkdir {home}/disk && mount -t tmpfs tmpfs {home}/disk && touch {home}/disk/file"
        )
        done = run(user(*command))
        if "lacks a part" in done.stderr:
            pytest.skip(done.stderr)
        found = [in_tmp, home, home / "disk", home / "disk" / "file", home / "own", Path("/tmp/own")]
        assert done.stdout.split() == ["0022", *map(str, found), str(user.id)], done.stderr
    assert (home / "own").exists()
    assert (tmp / "own").exists()


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["/home/me", "/var/tmp/x", "/tmpfile", "/"], []),
        (["/tmp", "/tmp/", "/tmp/../tmp"], []),
        (["/tmp/a/b", "/tmp/a", "/tmp/ab", "/tmp/a/"], ["/tmp/a", "/tmp/ab"]),
        (["/tmp/a/../b"], ["/tmp/b"]),
        (["/tmp/../home"], []),
    ],
)
def test_only_what_is_below_tmp_is_brought_back_and_once(paths: list[str], expected: list[str]) -> None:
    assert hosts_namespace.outermost(paths) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a right away from root")
def test_where_the_kernel_refuses_the_program_runs_without_names(folder: Path) -> None:
    done = run([*REFUSED, *inside(folder, "sh", "-c", "hostname; exit 7")])
    assert (done.returncode, done.stdout) == (7, f"{socket.gethostname()}\n")
    assert done.stderr == (
        "debug-0 lacks a part of its namespace: [Errno 1] unshare: Operation not permitted\n"
    )


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (["no-such-command"], 127, "no-such-command: no such command on the login machine\n"),
        ([""], 127, ": no such command on the login machine\n"),
        (["/etc/passwd"], 126, "/etc/passwd: cannot be executed: Permission denied\n"),
    ],
)
def test_a_command_that_cannot_be_started(folder: Path, argv: list[str], status: int, said: str) -> None:
    done = run(inside(folder, *argv))
    assert (done.returncode, done.stderr.splitlines(keepends=True)[-1]) == (status, said)


STAY = "import time\nprint('here', flush=True)\ntime.sleep(300)\n"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[PrivateMounts]:
    """This host with the test's own /etc, in which files can be replaced."""
    mounts = PrivateMounts()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "slurm").mkdir()
    mounts.run("cp", "-L", "/etc/hosts", "/etc/nsswitch.conf", str(tmp_path / "etc"))
    mounts.run("mount", "--bind", str(tmp_path / "etc"), "/etc")
    yield mounts
    mounts.close()


@needs_views
def test_a_machine_keeps_its_names_when_the_hosts_file_is_replaced(folder: Path, host: PrivateMounts) -> None:
    """An editor replaces the file; the kernel then removes the mount on the old one."""
    (folder / "stay.py").write_text(STAY)
    command = [*PYTHON, hosts_namespace.__file__, str(folder), "debug-0", "--python", str(folder / "stay.py")]
    machine = subprocess.Popen(host(*command), stdout=subprocess.PIPE, text=True)
    try:
        assert machine.stdout is not None
        assert machine.stdout.readline() == "here\n"
        # The process of nsenter has become this one.
        seen = Path(f"/proc/{machine.pid}/root/etc/hosts")
        assert seen.read_text() == (folder / "etc-hosts").read_text()
        host.run("sh", "-c", "echo 10.0.0.9 printer >/etc/new && mv /etc/new /etc/hosts")
        until(
            lambda: seen.read_text() == hosts_namespace.merged("10.0.0.9 printer\n", OURS),
            60,
            "the names again",
        )
        assert host.run("cat", "/etc/hosts") == "10.0.0.9 printer\n"
        host.run("sh", "-c", "rmdir /etc/slurm && mkdir /etc/slurm")
        conf = Path(f"/proc/{machine.pid}/root/etc/slurm/slurm.conf")
        until(lambda: conf.exists() and conf.read_text() == OUR_SLURM, 60, "the configuration again")
        assert host.run("ls", "/etc/slurm") == ""
    finally:
        machine.kill()
        machine.communicate()


# --- whether there are views -----------------------------------------------------------------------------


def test_the_cause_and_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    switch = tmp_path / "switch"
    switch.write_text("1\n")
    setting = (str(switch), "1", "kernel.some_restriction=0")
    monkeypatch.setattr(namespaces, "NAMESPACE_SETTINGS", (setting,))
    monkeypatch.setattr(namespaces, "_probe", lambda _address: "mount: Permission denied")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    begin = f"{NOT_BY_NAME}this kernel "
    assert namespaces.unsupported_reason("127.9.64.0") == (
        f"{begin}lets no ordinary user make namespaces ({switch} is 1); "
        "as root: sysctl -w kernel.some_restriction=0"
    )
    switch.write_text("0\n")
    assert namespaces.unsupported_reason("127.9.64.0") == (
        f"{begin}does not let an ordinary user make namespaces (mount: Permission denied); run as root"
    )
    monkeypatch.setattr(hosts_namespace, "HOSTS", tmp_path / "none")
    assert "this host has no /etc/hosts; as root: echo" in str(namespaces.unsupported_reason("127.9.64.0"))
    monkeypatch.setattr(addresses, "usable", lambda _first: False)
    assert "only 127.0.0.1 of the loopback's addresses" in str(namespaces.unsupported_reason("127.9.64.0"))


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a right away from root")
def test_a_real_refusal() -> None:
    ask = "from operations.local import namespaces; print(namespaces.unsupported_reason('127.9.64.0'))"
    done = run([*REFUSED, sys.executable, "-c", ask])
    assert done.stdout == (
        f"{NOT_BY_NAME}this root may not make namespaces "
        "([Errno 1] unshare: Operation not permitted); if it is a container's, start that with --privileged\n"
    ), done.stderr


def test_what_was_found_out_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = RunDirectory(tmp_path / "12ab")
    cluster.cloud.mkdir(parents=True)
    assert not has_hosts_namespace(cluster.path), "nothing is known yet"
    said: list[str] = []
    monkeypatch.setattr(namespaces, "unsupported_reason", lambda _first: None)
    monkeypatch.setattr(namespaces, "no_slurm_folder", lambda: None)
    namespaces.update(cluster, Stack(tmp_path, "test"), said.append)
    assert not has_hosts_namespace(cluster.path), "no machine has an address yet"
    cluster.hosts.write_text(OURS)
    assert has_hosts_namespace(cluster.path)
    shared = Path(Folders(settings(cluster.path)).shared_in_tmp)
    assert isinstance(json.loads(shared.read_text()), list)
    monkeypatch.setattr(namespaces, "unsupported_reason", lambda _first: "they do not; sorry")
    namespaces.update(cluster, Stack(tmp_path, "test"), said.append)
    assert (has_hosts_namespace(cluster.path), said) == (False, ["they do not; sorry"])
    assert not shared.exists(), "machines have no /tmp of their own"
    set_hosts_namespace(cluster.path, possible=True)
    (cluster.cloud / "hosts_namespace.json").write_text("{")
    assert not has_hosts_namespace(cluster.path)
