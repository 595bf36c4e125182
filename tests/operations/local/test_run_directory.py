"""The run directory and its ports: chosen once, saved, and never shared with another cluster."""

from __future__ import annotations

import dataclasses
import fcntl
import getpass
import json
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.errors import EXIT_REFUSED
from infra.program import folders, locations
from infra.program.stack import Stack
from node.design.folders import Folders
from node.design.model import SLURMDBD_PORT, Partition, SlurmSettings
from node.design.sites import LocalSite
from node.slurm.port_blocks import BLOCK
from node.system import ports
from operations.local import loopback, run_directory
from operations.local.run_directory import FIRST_PORT, LAST_PORT, RunDirectory, free_range
from tests.support import sentences
from tests.support.checkout import until
from tests.support.doubles import design


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "runs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "project").mkdir()
    return RunDirectory.make(Stack(tmp_path / "project", "test"))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


def busy(sock: socket.socket, port: int) -> None:
    sock.bind(("127.0.0.1", port))
    sock.listen()


def nodes(count: int) -> Partition:
    return Partition("debug", "local.small", 1, 100, 0, count)


def test_make_is_idempotent_and_links_what_outlives_the_cluster(run: RunDirectory, tmp_path: Path) -> None:
    assert run.path.parent == tmp_path / "runs"
    for folder in (run.cloud, run.bucket, run.shared, run.path / "log"):
        assert folder.is_dir()
    assert (run.path / "python3").resolve() == Path(sys.executable).resolve()
    assert run.apps.resolve() == tmp_path / "cache" / "slurm-stacks" / "apps"
    assert (run.apps / "envs").is_dir()
    # Nobody else reaches the cluster. What clusters there are is no secret, so that others keep off their
    # ports.
    assert [stat.S_IMODE(p.stat().st_mode) for p in (run.path, run.path.parent)] == [0o700, 0o755]
    (run.shared / "kept").touch()
    (run.path / "python3").unlink()
    (run.path / "python3").symlink_to("/nowhere")
    again = RunDirectory.make(Stack(tmp_path / "project", "test"))
    assert again == run == RunDirectory.of(Stack(tmp_path / "project", "test"))
    assert (run.shared / "kept").exists()
    assert (run.path / "python3").resolve() == Path(sys.executable).resolve(), "another Python by now"
    assert not list(run.path.glob(".*"))


def test_two_stacks_and_two_checkouts_never_meet(run: RunDirectory, tmp_path: Path) -> None:
    others = {
        RunDirectory.of(Stack(tmp_path / "project", "other")).path,
        RunDirectory.of(Stack(tmp_path / "clone", "test")).path,
        run.path,
    }
    assert len(others) == 3


def test_settings_agree_with_the_folders_of_the_nodes(run: RunDirectory) -> None:
    made = run.settings(design(nodes(3)))
    assert made.site.user == getpass.getuser()
    assert made.site.slurmd_port == made.site.slurmctld_port + 1
    assert (made.site.cloud, made.site.blocks) == (
        LocalSite(str(run.agent_socket), ipv6=loopback.has_ipv6()),
        {"debug": ((0, 64),)},
    )
    folders = Folders(made)
    assert Path(str(folders.code)) == run.tool.parent.parent
    assert Path(str(folders.slurm_conf)) == run.path / "etc" / "slurm.conf"
    assert run.settings(design(nodes(3))) == made, "the same again: no change for a second up"


def test_ports_are_kept_while_a_cluster_grows(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests' clusters listen there, too.
    monkeypatch.setattr(ports, "free", lambda _port: True)
    base = run.settings(design(nodes(3))).site.slurmctld_port
    assert run.settings(design(nodes(BLOCK))).site.slurmctld_port == base
    assert RunDirectory(run.path).settings(design(nodes(1))).site.slurmctld_port == base
    assert run.settings(design(nodes(3 * BLOCK))).site.slurmctld_port == base, "what follows is free"
    assert f'"count": {3 * BLOCK + 1}' in (run.path / "ports.json").read_text()


def test_ports_in_use_are_not_taken_again_when_a_cluster_grows(
    run: RunDirectory, listener: socket.socket
) -> None:
    base = run.settings(design(nodes(3))).site.slurmctld_port
    taken = next(number for number in range(base + 100, base + 200) if ports.free(number))
    busy(listener, taken)
    grown = run.settings(design(nodes(200))).site.slurmctld_port
    assert not grown <= taken < grown + 201


def test_the_ports_stay_while_daemons_of_the_cluster_end_and_start(
    run: RunDirectory, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld is killed after its port was found taken, and before its pid is looked for.

    Other ports would cut off the nodes that are up.
    """
    base = run.settings(design(nodes(3))).site.slurmctld_port
    busy(listener, base)
    looks: list[int] = []

    def pids(_run: RunDirectory) -> list[int]:
        looks.append(1)
        if len(looks) > 1:
            return [os.getpid()]  # its keeper has started it again
        listener.close()
        return []

    monkeypatch.setattr(RunDirectory, "pids", pids)
    assert run.settings(design(nodes(3))).site.slurmctld_port == base
    with socket.socket() as successor:
        busy(successor, base)
        assert run.settings(design(nodes(3))).site.slurmctld_port == base
    assert len(looks) > 1


def test_new_nodes_do_not_cut_off_those_that_are_up(run: RunDirectory, listener: socket.socket) -> None:
    """The ports that follow are another program's, so all ports would have to be others."""
    base = run.settings(design(nodes(3))).site.slurmctld_port
    before = (run.path / "ports.json").read_text()
    assert run.settings(design(nodes(BLOCK)), lambda: True).site.slurmctld_port == base
    busy(listener, base + BLOCK + 1)
    with sentences.raises(
        "ports.nodes-are-up",
        2 * BLOCK,
        varies=(base + BLOCK + 1, base + 3 * BLOCK + 1),
    ) as refused:
        run.settings(design(nodes(3 * BLOCK)), lambda: True)
    assert refused.value.exit_code == EXIT_REFUSED
    assert (run.path / "ports.json").read_text() == before, "the next look refuses again"
    assert run.settings(design(nodes(3 * BLOCK))).site.slurmctld_port != base, "nobody is cut off"


def test_ports_that_another_cluster_keeps_for_nodes_that_are_off_are_not_taken(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cluster of this user, and one of a user whose run directory cannot be read."""
    wanted = free_range(BLOCK + 1, int(run.path.name, 16))
    theirs = tmp_path / "slurm-stacks-4242"
    monkeypatch.setattr(locations, "run_roots", lambda: [tmp_path / "runs", theirs])
    for number, root in enumerate((tmp_path / "runs", theirs)):
        (root / "a").mkdir(parents=True)
        note = json.dumps({"base": wanted + 100 * number, "count": 100})
        (root / ("a.ports" if number else "a/ports.json")).write_text(note)
    base = run.settings(design(nodes(3))).site.slurmctld_port
    assert base >= wanted + 200 or base + BLOCK < wanted


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two other users")
def test_ordinary_users_do_not_take_each_others_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens on the ports of nodes that are off, so only the other user's note tells of them."""
    place = Path(tempfile.mkdtemp(prefix="slurm-stacks-ports-"))
    place.chmod(0o1777)
    monkeypatch.setattr(locations, "run_root", lambda: place / f"slurm-stacks-{os.getuid()}")
    monkeypatch.setattr(run_directory, "user", lambda: "somebody")

    def choose(user: int) -> int:
        """Return the first port of a user's new cluster, whose search begins where the other user's does."""
        chosen = place / f"chosen-{user}"
        if (child := os.fork()) == 0:
            try:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
                os.environ["XDG_CACHE_HOME"] = str(place / f"cache-{user}")
                os.environ["XDG_STATE_HOME"] = str(place / f"state-{user}")
                stack = Stack(place / f"project-{user}", "test")
                stack.project.mkdir()
                (folders.make_state_dir(stack) / locations.ID).write_text("0123456789")
                run = RunDirectory.make(stack)
                chosen.write_text(str(run.settings(design(nodes(3))).site.slurmctld_port))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        return int(chosen.read_text())

    try:
        first, second = choose(4242), choose(4243)
        assert abs(first - second) > BLOCK
    finally:
        shutil.rmtree(place)


def test_what_another_user_put_in_the_place_of_a_note_keeps_nobody_waiting(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "slurm-stacks-4242"
    monkeypatch.setattr(locations, "run_roots", lambda: [tmp_path / "runs", theirs])
    theirs.mkdir()
    os.mkfifo(theirs / "pipe.ports")
    (theirs / "link.ports").symlink_to("/dev/zero")
    (theirs / "folder.ports").mkdir()
    (theirs / "text.ports").write_text("[" * 100_000)
    assert run._ports_of_others() == []
    run.settings(design(nodes(3)))


def test_ports_are_chosen_by_one_command_at_a_time(run: RunDirectory) -> None:
    """Otherwise two commands at the same time would find the same free ports."""
    chosen: list[int] = []
    folder = os.open(run.path.parent, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    other = threading.Thread(
        target=lambda: chosen.append(run.settings(design(nodes(3))).site.slurmctld_port), daemon=True
    )
    other.start()
    # `settings` comes no further than to its wait for the lock, which the kernel lists.
    inode = f":{os.fstat(folder).st_ino} "
    until(
        lambda: any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()),
        60,
        "the other to wait",
    )
    assert not (run.path / "ports.json").exists()
    os.close(folder)
    other.join(60)
    assert chosen
    assert (run.path / "ports.json").exists()


def test_slurmdbd_has_a_port_beside_the_others_which_it_keeps(
    run: RunDirectory, listener: socket.socket
) -> None:
    off = run.settings(design(nodes(3)))
    assert off.site.slurmdbd_port == SLURMDBD_PORT
    with_it = design(nodes(3), slurm=SlurmSettings(accounting=True))
    on = run.settings(with_it)
    assert dataclasses.replace(on.site, slurmdbd_port=SLURMDBD_PORT) == off.site, "no node's port moves"
    port = on.site.slurmdbd_port
    assert not off.site.slurmctld_port <= port <= off.site.slurmctld_port + BLOCK
    assert run.settings(with_it) == on
    # This very process is none of the cluster's.
    busy(listener, port)
    moved = run.settings(with_it)
    assert moved.site.slurmdbd_port != port
    assert dataclasses.replace(moved.site, slurmdbd_port=port) == on.site, "and nothing else moves"


def test_a_range_is_free_and_in_bounds(listener: socket.socket) -> None:
    seed = os.getpid() * 977  # another run of these tests has another
    base = free_range(64, seed)
    assert base >= FIRST_PORT
    assert base + 64 <= LAST_PORT
    assert free_range(64, seed) == base
    busy(listener, base + 63)
    other = free_range(64, seed)
    assert not other <= base + 63 < other + 64


def test_a_listener_on_another_address_is_in_the_way_too(listener: socket.socket) -> None:
    base = free_range(64, os.getpid() * 991)
    listener.bind(("127.0.0.3", base + 10))
    listener.listen()
    other = free_range(64, os.getpid() * 991)
    assert not other <= base + 10 < other + 64


# --- ports that were chosen, and somebody else has since taken -------------------------------------------


@pytest.fixture
def ours(run: RunDirectory) -> Iterator[Callable[[int], None]]:
    """Starts processes of the cluster that listen on a port."""
    code = (
        "import socket, sys, time; s = socket.create_server(('', int(sys.argv[1]))); print(1); time.sleep(60)"
    )
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int) -> None:
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", code, str(port)],
            env={"SLURM_STACKS_RUN": str(run.path)},
            stdout=subprocess.PIPE,
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline()

    yield start
    for child in started:
        child.kill()
        child.communicate()


def port(run: RunDirectory) -> int:
    return run.settings(design(nodes(3))).site.slurmctld_port


@pytest.mark.parametrize("taken", [0, 2])
def test_a_cluster_of_which_nothing_runs_moves(
    run: RunDirectory, listener: socket.socket, taken: int
) -> None:
    base = port(run)
    busy(listener, base + taken)
    moved = port(run)
    assert not moved <= base + taken < moved + 65
    assert port(run) == moved, "and stays"


def test_a_cluster_that_runs_stays(
    run: RunDirectory, listener: socket.socket, ours: Callable[[int], None]
) -> None:
    base = port(run)
    ours(base)
    assert port(run) == base, "its own controller is nobody else"
    busy(listener, base + 3)
    assert port(run) == base, "one node that cannot start is no reason to end the others' jobs"


def test_a_controller_whose_port_was_taken_moves_although_nodes_run(
    run: RunDirectory, listener: socket.socket, ours: Callable[[int], None]
) -> None:
    base = port(run)
    ours(base + 1)
    busy(listener, base)
    assert port(run) != base


@pytest.mark.parametrize("content", ["", "{", "[]", '{"base": "x", "count": 1}'])
def test_a_memory_that_is_damaged_is_none(run: RunDirectory, content: str) -> None:
    base = port(run)
    (run.path / "ports.json").write_text(content)
    assert port(run) == base, "the search begins where it began"


def test_two_clusters_of_one_user_never_have_a_port_in_common(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most nodes do not run, so nobody listens on their ports when another cluster chooses."""
    monkeypatch.setattr(ports, "free", lambda _port: True)
    # The folder's name is where the search begins. Near the last port the other search would go round.
    run = RunDirectory(run.path.with_name("64"))
    run.path.mkdir()
    base = port(run)
    # Its search begins among the first one's.
    other = RunDirectory(run.path.with_name(f"{base + 10 - FIRST_PORT:x}"))
    other.path.mkdir()
    assert port(other) == base + 65
    assert port(run) == base
    (run.path / "ports.json").write_text(f'{{"base": {FIRST_PORT}, "count": {LAST_PORT - FIRST_PORT}}}')
    third = RunDirectory(run.path.with_name("f"))
    third.path.mkdir()
    assert port(third) == FIRST_PORT + 15, "a note that leaves nothing to others keeps nobody out"


def test_the_search_goes_round(monkeypatch: pytest.MonkeyPatch) -> None:
    free = set(range(FIRST_PORT + 10, FIRST_PORT + 30))
    monkeypatch.setattr(ports, "free", lambda port: port in free)
    for seed in (0, 5000, LAST_PORT - FIRST_PORT - 20, LAST_PORT, 2**40):
        base = free_range(20, seed)
        assert base == FIRST_PORT + 10, f"seed {seed}"
    with sentences.raises("ports.not-free", 21):
        free_range(21, 7)


def test_too_many_nodes_are_refused_in_words() -> None:
    with sentences.raises("ports.too-many", "nodes.max"):
        free_range(LAST_PORT - FIRST_PORT + 1, 0)


def test_the_cache_follows_the_users_wish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert locations.cache_root() == tmp_path / ".cache" / "slurm-stacks"
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert locations.cache_root() == Path("/caches/slurm-stacks")


def test_folders_above_the_run_directory_in_which_others_could_exchange_it(
    run: RunDirectory, tmp_path: Path
) -> None:
    stack = Stack(tmp_path / "project", "test")
    mode = stat.S_IMODE(tmp_path.stat().st_mode)
    tmp_path.chmod(0o777)
    try:
        with sentences.raises("folder.problem", f"{tmp_path} has mode 777", f"chmod +t {tmp_path}"):
            RunDirectory.make(stack)
        tmp_path.chmod(0o1777)
        RunDirectory.make(stack)
    finally:
        tmp_path.chmod(mode)


def test_a_user_whom_slurm_cannot_know(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = list(pwd.getpwuid(os.getuid()))
    for name, known in (('a "b"', False), ("DOM\\ada", True), ("Ada Lovelace", True)):
        monkeypatch.setattr(pwd, "getpwuid", lambda _uid, name=name: pwd.struct_passwd([name, *entry[1:]]))
        if known:
            assert run_directory.user() == name
            continue
        with sentences.raises("user.name-form") as error:
            run_directory.user()
        assert error.value.exit_code == 3
