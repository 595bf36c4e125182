"""First the right to act, then the act: what each command asks, locks and touches, in that order.

`ROWS` is the table. Each row is what a real run of the command does at the seams: the stack's lock, the
question to the backend, the lines that run on the cluster's controller, the engine, the cluster's own
command, this machine's packages. A command without a row fails, and so does another order.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import errno
import io
import json
import os
import re
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer
from pulumi.automation import errors

from cli import main as cli
from cli.changes.closing import Holder
from cli.changes.decision import ClusterControl
from cli.commands import backup, doctor, env, logs, operate, run_tests
from cli.commands import cp as copies
from cli.commands import report as reports
from cli.commands.report import Made
from cli.console.progress import Console
from cli.engine import automation, backend, lock, state
from cli.engine.embedded import EmbeddedRunner
from cli.providers import login_machine
from cli.providers.local import clusters as local_clusters
from cli.providers.local import running
from cli.providers.local.provider import LocalProvider
from infra.config import load_file
from infra.design import design
from infra.errors import EXIT_REFUSED, UserError
from infra.instance_types.catalog import catalog
from infra.program import clusters, folders, locations, owner
from infra.program.stack import Stack
from node.design.local_cloud import CloudBehaviour
from node.system import locks
from node.system.codec import to_json
from operations import packages
from operations.local.run_directory import RunDirectory
from tests.support import fake_pulumi, sentences
from tests.support.checkout import ROOT
from tests.support.job_lines import kind
from tests.support.small_slurm import SmallSlurm
from tests.support.sweep_cluster import SweepUser

STACK_FILE = """\
config:
  slurm-stacks:cluster:
    provider: local
    partitions: [{name: cpu, instance_type: local.small, nodes: {max: 1}, default: true}]
  slurm-stacks:benchmark: {enabled: false}
"""
JOB = "7|ann|cpu|cpu-1|RUNNING|"
RIGHTS = ("lock", "share", "record")
"""What gives the right to act: the stack's lock for one or with others, or that of a cluster's record."""
ASKS = (*RIGHTS, "look", "partitions", "list", "consent", "tool", "agent", "exec", "copy")
"""The beginnings of what changes nothing of the stack. All else touches a job, a node, packages or files."""
UP = ("lock", "look")
NOTHING: tuple[str, ...] = ()
FAULTS = ("kill", "freeze", "thaw", "cut", "join", "preempt")
ROWS: dict[str, tuple[str, ...]] = {
    # Alone: nobody else may change the stack, or be refused after it has changed something.
    "up": (*UP, "partitions", "list", "packages", "hold DOWN", "engine up", "repair", "release", "unlock"),
    "up --replace": (
        *UP, "packages", "partitions", "hold DOWN", "end", "engine up", "repair", "release", "unlock",
    ),
    "down": ("lock", "look", "consent", "hold DOWN", "end", "engine down", "unlock"),
    "restore": ("lock", "controller restore", "unlock"),
    # The checkout with the lock is gone: the record of the cluster is locked instead.
    "down --cluster": ("record", "look", "consent", "hold DOWN", "end", "files"),
    # With others of these, but beside none of the above.
    "backup": ("share", "controller backup", "unlock"),
    "run": ("share", "submit", "unlock"),
    "run --cancel": ("share", "cancel", "unlock"),
    "env make": ("share", "files", "unlock"),
    # One request, which the local cloud carries out or refuses whole. Faults are for any moment, `up` too.
    **{f"chaos {verb}": ("agent",) for verb in ("set", "clear", *FAULTS)},
    # A user's own shell and files, of which the commands above know nothing.
    "exec": ("exec",), "ssh": ("exec",), "cp": ("copy",),
    # These change nothing of a stack.
    "status": ("tool status",), "cost": ("tool cost",), "env list": ("tool environments",),
    "chaos show": ("agent",),
    "backup --list": ("tool backup",),
    **dict.fromkeys(
        ("plan", "init", "list", "report", "doctor", "test", "ssh-config", "outputs", "logs"), NOTHING
    ),
}  # fmt: skip
"""Command -> what it does, in order. `run` watches, and `up` waits for its benchmark, without a lock."""


class Scene:
    """A project with a stack that is up, and the record of what a command does.

    Attributes:
        did: What was done at the seams.
        refuses: The seam that refuses.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self.folder = folder / "project"
        self.folder.mkdir()
        (self.folder / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
        self.stack = Stack(self.folder, "local")
        self.stack.file.write_text(STACK_FILE)
        monkeypatch.chdir(self.folder)
        monkeypatch.setenv("SLURM_STACKS_PROJECT", str(self.folder))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        monkeypatch.setattr(locations, "run_root", lambda: folder / "runs")
        self.slurm = SmallSlurm(folder / "head")
        monkeypatch.setattr("node.slurm.environment.PATH", f"{self.slurm.folder}/bin:/usr/bin:/bin")
        self._monkeypatch = monkeypatch
        self._seams()

    def put(self, place: Any, name: str, does: str = "", answer: Any = None) -> None:
        """Replace a function by one that notes what it does."""

        def noted(*_arguments: Any, **_options: Any) -> Any:
            self.note(does)
            return answer

        self._monkeypatch.setattr(place, name, noted)

    def note(self, does: str) -> None:
        if does and not (does == "agent" and self.did[-1:] == ["agent"]):
            self.did.append(does)

    def _seams(self) -> None:
        put = self.put
        self._locks()
        up = design(load_file(self.stack.file), catalog())
        more = tuple(dataclasses.replace(partition, max=2) for partition in up.partitions)
        put(running, "published", "", dataclasses.replace(up, partitions=more))

        def run(line: str, seconds: float) -> str:
            self.note(kind(line))
            return self.slurm.run(line, seconds)

        def control(_run: object, _stack: Stack, command: str) -> ClusterControl:
            return dataclasses.replace(self.slurm.control(command), run=run)

        self._monkeypatch.setattr(running, "control", control)
        put(EmbeddedRunner, "up", "engine up", {})
        put(EmbeddedRunner, "destroy", "engine down")
        put(EmbeddedRunner, "outputs", "", {"cluster": {}})
        for name, does, answer in (
            ("check_host", "", None), ("prepare", "packages", None), ("repair", "repair", None),
            ("leftovers", "", []), ("make_environment", "files", "/x/envs/1"),
        ):  # fmt: skip
            put(LocalProvider, name, does, answer)
        put(local_clusters, "end_cluster", "files")
        put(local_clusters, "leftovers", "", [])

        def on_controller(_controller: object, _up: object, words: list[str], **_more: object) -> str:
            self.note("tool backup" if "--list" in words else f"controller {words[0]}")
            return json.dumps({"names": [], "bucket": "b"})

        def tool(_machine: object, _up: object, verb: str, *_options: str, **_more: object) -> str:
            self.note(f"tool {verb}")
            return "{}" if verb in ("status", "cost") else "[]"

        def call(_run: object, method: str, _seconds: float, **_params: object) -> Any:
            self.note("agent")
            machine = {"node": "cpu-0", "frozen": False, "cut": False, "notice": None, "registers": True}
            limits = to_json(CloudBehaviour())
            return {"inspect": {"machines": [machine]}, "limits": limits}.get(method, machine)

        self._monkeypatch.setattr(backup, "_run", on_controller)
        self._monkeypatch.setattr(login_machine, "tool", tool)
        self._monkeypatch.setattr(RunDirectory, "call", call)
        put(login_machine, "replace_process", "exec")
        put(copies, "copy", "copy")
        put(copies, "stanza", "", "")
        put(operate, "make_plan", "", {})
        put(env, "_known", "", {})
        put(logs, "show", "", 0)
        put(reports, "make", "", Made(Path("page"), Path("table")))
        put(doctor, "run", "", 0)
        put(run_tests, "run", "", 0)
        put(packages, "provide")
        put(typer, "confirm", "consent", answer=True)
        self._monkeypatch.setattr(Console, "live", property(lambda _console: True))
        terminal = io.StringIO()
        self._monkeypatch.setattr(terminal, "isatty", lambda: True)
        self._monkeypatch.setattr(sys, "stdin", terminal)

    def _locks(self) -> None:
        acquire, put_away, alone = lock.acquire_lock, lock._put_away, local_clusters._alone

        def acquired(*arguments: Any, shared: bool = False) -> int:
            handle = acquire(*arguments, shared=shared)
            self.note("share" if shared else "lock")
            return handle

        def released(path: Path, handle: int) -> None:
            put_away(path, handle)
            self.note("unlock")

        @contextlib.contextmanager
        def record(*arguments: Any) -> Iterator[None]:
            with alone(*arguments):
                self.note("record")
                yield

        self._monkeypatch.setattr(lock, "acquire_lock", acquired)
        self._monkeypatch.setattr(lock, "_put_away", released)
        self._monkeypatch.setattr(local_clusters, "_alone", record)

    def run(self, *words: str) -> int:
        """Run `./cluster` in this process, and return its exit status."""
        self.did.clear()
        self._monkeypatch.setattr(sys, "argv", ["cluster", *words])
        try:
            cli.main()
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return 0

    def lost_checkout(self) -> str:
        """Make a cluster whose checkout is gone, and return its id."""
        other = Stack(self.folder.parent / "gone", "local")
        other.project.mkdir()
        run = folders.make_run_dir(other)
        shutil.rmtree(other.project)
        return run.name


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


WORDS = {
    "backup": ("backup", "--bucket"),
    "backup --list": ("backup", "--list"),
    "restore": ("restore", "--bucket", "--json"),
    "env make": ("env", "make", "Pulumi.yaml"),
    "exec": ("exec", "true"),
    "cp": ("cp", "a", ":b"),
    "chaos set": ("chaos", "set", "quota_nodes=1"),
    "init": ("init", "--stack", "new", "--provider", "local", "--partition", "cpu=local.small,nodes=0-1"),
    "plan": ("plan", "--json"),
    "status": ("status", "--json"),
    "cost": ("cost", "--json"),
    **{
        f"chaos {verb}": ("chaos", verb, "cpu-0")
        for verb in ("kill", "freeze", "thaw", "cut", "join", "preempt")
    },
}
"""Command -> the words of its run, where its name is not enough."""


@pytest.mark.parametrize("command", [name for name in ROWS if not name.startswith("run")])
def test_each_command_does_what_its_row_says_in_that_order(scene: Scene, command: str) -> None:
    # Without --replace a change that ends jobs is refused (below); a `down` names the jobs that it ends.
    scene.slurm.jobs(*([JOB] if command in ("up --replace", "down", "down --cluster") else []))
    words = WORDS.get(command, tuple(command.split()))
    if command == "down --cluster":
        words = (*words, scene.lost_checkout())
    status = scene.run(*words)
    assert scene.did == list(ROWS[command]), status
    assert status == 0


@pytest.mark.parametrize("command", ["run", "run --cancel"])
def test_a_sweep_is_submitted_and_cancelled_with_the_lock_and_watched_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    user = SweepUser(tmp_path, monkeypatch, capsys)
    if command != "run":
        user.cut_off("--nodes", "1")
    scene = Scene.__new__(Scene)
    scene.did, scene._monkeypatch = [], monkeypatch
    scene._locks()
    user.slurm.hooks = dict.fromkeys(("sbatch", "cancel", "show"), scene.note)
    assert user.run(*(("--nodes", "1") if command == "run" else ("--cancel",))).code == 0
    done = [{"sbatch": "submit"}.get(step, step) for step in scene.did]
    # The sweep's own lock, around both, is of another file and of no `up`.
    done = [step for step in done if step not in ("lock",)]
    first = done.index("share")
    assert tuple(done[first : first + 3]) == ROWS[command]
    assert {*done[:first], *done[first + 3 :]} <= {"show", "unlock"}


def test_every_command_has_a_row() -> None:
    def names(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
        for name, below in getattr(command, "commands", {}).items():
            yield from names(below, (*words, name))
        if not hasattr(command, "commands"):
            yield " ".join(words)

    assert {*names(cli.commands())} == {name.partition(" --")[0] for name in ROWS}


def test_no_row_touches_anything_before_it_has_the_right_to() -> None:
    for command, row in ROWS.items():
        touches = [at for at, step in enumerate(row) if not step.startswith((*ASKS, "unlock"))]
        if touches:
            assert row[0] in RIGHTS, command
            assert "unlock" not in row[: max(touches)], f"{command}: to the end"
            assert "consent" not in row[min(touches) :], command


# --- who is refused has touched nothing -------------------------------------------------------------------

ALONE = [name for name, row in ROWS.items() if row[:1] == ("lock",)]
SHARED = [name for name, row in ROWS.items() if row[:1] == ("share",) and not name.startswith("run")]


@contextlib.contextmanager
def held(scene: Scene, *, shared: bool) -> Iterator[None]:
    """Hold the stack's lock as another process does."""
    path = folders.make_state_dir(scene.stack) / "lock"
    with path.open("w") as handle:
        assert locks.acquire(handle.fileno(), shared=shared)
        yield


@pytest.mark.parametrize(
    ("command", "shared"),
    [(name, shared) for name in ALONE for shared in (False, True)] + [(name, False) for name in SHARED],
)
def test_who_is_refused_for_another_command_has_asked_and_touched_nothing(
    scene: Scene, capsys: pytest.CaptureFixture[str], command: str, shared: bool
) -> None:
    scene.slurm.jobs(JOB)
    with held(scene, shared=shared):
        assert scene.run(*WORDS.get(command, tuple(command.split()))) == EXIT_REFUSED
    assert scene.did == []
    assert "[state.busy]" in capsys.readouterr().err
    assert scene.slurm.changes == []


def test_two_that_end_a_cluster_without_a_checkout_do_not_meet(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = scene.lost_checkout()
    (record,) = clusters.recorded()
    with record.file.open() as handle:
        assert locks.acquire(handle.fileno())
        assert scene.run("down", "--cluster", cluster) == EXIT_REFUSED
    assert scene.did == []
    assert "[cluster.busy]" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["link", "folder", "no locks", "read-only"])
def test_a_lock_that_cannot_be_is_one_message_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A link that led nowhere kept the command busy for ever."""
    path, before = tmp_path / "lock", len(list(Path("/proc/self/fd").iterdir()))

    def refuse(number: int) -> NoReturn:
        raise OSError(number, os.strerror(number))

    if fault == "link":
        path.symlink_to(tmp_path / "nowhere" / "lock")
    elif fault == "folder":
        path.mkdir()
    elif fault == "no locks":
        monkeypatch.setattr("fcntl.flock", lambda *_: refuse(errno.ENOLCK))
    else:
        monkeypatch.setattr(os, "open", lambda *_: refuse(errno.EROFS))
    with pytest.raises(UserError, match=re.escape(str(path))):
        lock.acquire_lock(path, lambda: None, lambda _: None)
    monkeypatch.undo()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("command", SHARED)
def test_those_that_share_the_lock_do_not_refuse_each_other(scene: Scene, command: str) -> None:
    with held(scene, shared=True):
        assert scene.run(*WORDS.get(command, tuple(command.split()))) == 0
        assert (locations.state_dir(scene.stack) / "lock").exists(), "the other still needs it"
    assert scene.did == list(ROWS[command])


def refusals() -> dict[str, tuple[Callable[[Scene], None], str]]:
    """What can be known before: what makes a command be refused, and the code."""

    def other_owner(scene: Scene) -> None:
        run = folders.make_run_dir(scene.stack)
        (run / owner.OWNER).write_text("https://api.pulumi.com\n")
        (run / "cloud").mkdir()

    def encrypted(scene: Scene) -> None:
        scene.stack.file.write_text(STACK_FILE + "  other:key: {secure: v1:xyz}\n")

    def newer_state(scene: Scene) -> None:
        (folders.make_state_dir(scene.stack) / "state.json").write_text('{"version": 99}')

    def damaged_state(scene: Scene) -> None:
        (folders.make_state_dir(scene.stack) / "state.json").write_text("{")

    def no_room(scene: Scene) -> None:
        folder = folders.make_state_dir(scene.stack)
        state.State(scene.stack).put("urn", state.Made({}))
        (folder / "state.new").symlink_to("/dev/full")

    def no_packages(scene: Scene) -> None:
        def prepare(*_arguments: object) -> None:
            raise UserError("no packages", EXIT_REFUSED, code="system.no-packages")

        scene._monkeypatch.setattr(LocalProvider, "prepare", prepare)

    def no_host(scene: Scene) -> None:
        def check_host(*_arguments: object) -> None:
            raise UserError("not on this host", EXIT_REFUSED, code="host.no-linux")

        scene._monkeypatch.setattr(LocalProvider, "check_host", check_host)

    def works_elsewhere(scene: Scene) -> None:
        elsewhere = dataclasses.replace(Holder.of(None, "down"), process="")
        scene.slurm.control(holder=elsewhere).hold("DOWN", ["cpu"])
        (scene.slurm.folder / "calls").unlink()

    return {
        "other owner": (other_owner, "runner.other-owner"),
        "encrypted": (encrypted, "runner.encrypted"),
        "newer state": (newer_state, "state.version"),
        "damaged state": (damaged_state, "state.damaged"),
        "no room": (no_room, "system.no-space"),
        "no packages": (no_packages, "system.no-packages"),
        "no host": (no_host, "host.no-linux"),
        "works elsewhere": (works_elsewhere, "cluster.busy"),
    }


@pytest.mark.parametrize(
    ("command", "why"),
    [(command, why) for command in ("up", "up --replace") for why in refusals()]
    + [("down", why) for why in ("other owner", "newer state", "works elsewhere")],
)
def test_what_can_be_known_before_is_refused_before_anything_is_touched(
    scene: Scene, capsys: pytest.CaptureFixture[str], command: str, why: str
) -> None:
    makes, code = refusals()[why]
    makes(scene)
    scene.slurm.jobs(*([] if command == "up" else [JOB]))
    assert scene.run(*command.split()) != 0
    assert f"[{code}]" in capsys.readouterr().err
    touched = [step for step in scene.did if not step.startswith((*ASKS, "unlock"))]
    assert (touched, scene.slurm.changes) == ([], [])
    assert "consent" not in scene.did


def test_a_change_that_ends_jobs_is_refused_with_every_partition_open(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.slurm.jobs(JOB)
    assert scene.run("up") == EXIT_REFUSED
    assert "[change.ends-jobs]" in capsys.readouterr().err
    assert scene.did == ["lock", "look", "partitions", "list", "unlock"]


def test_who_does_not_agree_has_a_cluster_that_nobody_has_touched(scene: Scene) -> None:
    scene.slurm.jobs(JOB)
    scene.put(typer, "confirm", "consent", answer=False)
    assert scene.run("down") == EXIT_REFUSED
    assert scene.did == ["lock", "look", "consent", "unlock"]


# --- the backend of Pulumi --------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["organization/slurm-stacks/test", "test"])
def test_a_lock_in_a_file_backend_is_named_and_left_alone(tmp_path: Path, layout: str) -> None:
    (tmp_path / "Pulumi.yaml").write_text("name: slurm-stacks\nruntime: python\n")
    stack, url = Stack(tmp_path, "test"), f"file://{tmp_path}/a%20b"
    folder = tmp_path / "a b" / ".pulumi" / "locks"
    assert backend.refuse_if_locked_here(stack, url), "there is no lock"
    for name in ("organization/other/test", "organization/slurm-stacks/other", "other"):
        (folder / name).mkdir(parents=True)
        (folder / name / "1.json").write_text("{}")
    assert backend.refuse_if_locked_here(stack, url), "those are others'"
    lock = folder / layout / "2.json"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text(
        '{"pid": 7, "username": "ann", "hostname": "laptop", "timestamp": "2026-01-01T00:00:00Z"}'
    )
    with sentences.raises(
        "runner.backend-busy", "ann@laptop (pid 7)", "pulumi cancel", varies=[str(tmp_path)]
    ):
        backend.refuse_if_locked_here(stack, url)
    for damaged in ("", "[" * 100_000):
        lock.write_text(damaged)
        with pytest.raises(UserError, match=r"cancel --stack acme/slurm-stacks/test`"):
            backend.refuse_if_locked_here(dataclasses.replace(stack, organization="acme"), url)
    assert lock.exists()
    assert not backend.refuse_if_locked_here(stack, "https://api.pulumi.com")


class Selected:
    """A stack of the Automation API."""

    def __init__(self, *, updating: bool = False, refresh: Exception | None = None) -> None:
        self.workspace, self.name = self, "team/test"
        self._updating, self._refresh = updating, refresh
        self.targets: list[str] = []

    def list_stacks(self) -> list[Any]:
        return [
            types.SimpleNamespace(name=name, current=name != "test", update_in_progress=updating)
            for name, updating in (("other", True), ("test", self._updating))
        ]

    def export_stack(self) -> Any:
        resources = [{"urn": "root", "type": backend.ROOT}, {"urn": "other", "type": "t"}]
        return types.SimpleNamespace(deployment={"resources": resources})

    def refresh(self, *, target: list[str], **_options: Any) -> None:
        self.targets += target
        if self._refresh is not None:
            raise self._refresh


def test_pulumis_service_and_a_bucket_say_whether_an_update_is_under_way(tmp_path: Path) -> None:
    stack, service = Stack(tmp_path, "test"), "https://api.pulumi.com"
    quiet = Selected()
    backend.refuse_if_updating(stack, service, quiet, None)
    assert quiet.targets == [], "nothing is begun there"
    with sentences.raises("runner.backend-busy", service):
        backend.refuse_if_updating(stack, service, Selected(updating=True), None)
    backend.refuse_if_updating(stack, "s3://states", quiet, None)
    assert quiet.targets == ["root"], "no provider is asked"
    told = "code: 255\nstderr: error: the stack is currently locked by 1 lock(s)."
    locked = errors.ConcurrentUpdateError(types.SimpleNamespace(__str__=lambda: told))  # type: ignore[arg-type]
    locked.args = (told,)
    with sentences.raises("runner.backend-busy", "s3://states", "locked by 1 lock"):
        backend.refuse_if_updating(stack, "s3://states", Selected(refresh=locked), None)


@pytest.mark.parametrize("verb", ["up", "down"])
def test_the_pulumi_cli_is_asked_before_anything_and_with_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Any
) -> None:
    """A file backend of the user's own, as two laptops may share one."""
    for name in ("Pulumi.yaml", "__main__.py"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "Pulumi.test.yaml").write_text(STACK_FILE)
    fake_pulumi.install(tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "runs")
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}/states")
    stack = Stack(tmp_path, "test")
    engine = automation.PulumiRunner(stack, local=True)
    with engine.changing(verb), pytest.raises(UserError, match="is working on stack"):
        contextvars.Context().run(lock.locked(stack, "other").__enter__)
    folder = tmp_path / "states" / backend.LOCKS / "organization" / "slurm-stacks" / "test"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text("{}")
    with pytest.raises(UserError) as caught, engine.changing(verb):
        pytest.fail("it may act")
    assert (caught.value.code, caught.value.exit_code) == ("runner.backend-busy", EXIT_REFUSED)
    assert not locations.run_dir(stack).exists()
