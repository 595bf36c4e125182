"""A restore: what it refuses and exchanges, that an interruption anywhere loses nothing, and lost nodes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.slurm_releases import table
from node.backup import archive, database, restore
from node.backup.archive import BackupError, Manifest
from node.bootstrap.accounting import DATABASE
from node.elastic.view import is_admin_disabled
from node.folders import Folders
from node.model import SlurmSettings
from node.slurm import version
from tests.support.doubles import FakeControl, design, job, node, settings

MANIFEST = Manifest("test", "test", 1_800_000_000.0, "slurm-wlm 22.05.8", False, 2, 100, 50, "0" * 64)


class Control(FakeControl):
    """A slurmctld with a number for its next job."""

    following = 1

    def run(self, *command: str) -> str:
        if command == ("scontrol", "show", "config"):
            return f"FirstJobId              = 1\nNEXT_JOB_ID             = {self.following}\n"
        return super().run(*command)


def refusal(manifest: Manifest, **changes: Any) -> str | None:
    """Return the code with which a backup is refused."""
    control = Control()
    control.following = changes.get("following", 1)
    cluster_design = design(name="test", slurm=SlurmSettings(accounting=changes.get("accounting", False)))
    its = settings(Path("/"), cluster_design)
    release = changes.get("release", "slurm-wlm 22.05.8")
    try:
        restore.check(its, manifest, control, release, replace=changes.get("replace", False))
    except BackupError as error:
        return error.code
    return None


def changed(**values: Any) -> Manifest:
    given = {**MANIFEST.as_json(), **values}
    del given["apiVersion"]
    return Manifest(**given)


def test_a_backup_that_does_not_fit_is_refused() -> None:
    assert refusal(MANIFEST) is None
    assert refusal(changed(cluster="other")) == "restore.other-cluster"
    assert refusal(MANIFEST, following=2) == "restore.not-empty"
    assert refusal(MANIFEST, following=2, replace=True) is None
    assert refusal(changed(accounting=True)) == "restore.accounting"
    assert refusal(changed(accounting=True), accounting=True) is None
    assert refusal(MANIFEST, accounting=True) is None
    assert refusal(changed(slurm="slurm 23.11.4")) == "restore.release"
    assert refusal(MANIFEST, release="slurm 23.11.4") is None
    assert refusal(MANIFEST, release="slurm 24.11.5") == "restore.release"


def test_a_release_reads_the_states_that_schedmd_says() -> None:
    known = table().releases
    for name, release in known.items():
        readable = {version.spell(found) for found in version.reads_state_of(version.parse(name))}
        assert readable == {name, *release.takes_over_from}
    assert [version.spell(found) for found in version.RELEASES if version.spell(found) in known] == list(
        known
    )


def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return slurmctld's folder with a prepared restore, and the restore's folder in it."""
    state = tmp_path / "state"
    work = state / restore.WORK
    new = work / restore.PARTS / archive.STATE
    for folder, word in ((state, "present"), (new, "saved")):
        (folder / "hash.1" / f"job.{word}").mkdir(parents=True)
        for name in ("job_state", "job_state.old", "node_state", "clustername", f"only_{word}"):
            (folder / name).write_text(word)
    return state, work


def content(state: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in state.iterdir() if path.is_file()}


RESTORED = {
    "job_state": "saved", "job_state.old": "saved", "only_saved": "saved", "node_state": "present",
}  # fmt: skip


@pytest.mark.parametrize("keep_name", [True, False])
def test_all_but_the_nodes_is_exchanged(tmp_path: Path, keep_name: bool) -> None:
    state, work = folders(tmp_path)
    restore.swap(state, work, keep_name=keep_name)
    assert content(state) == {**RESTORED, "clustername": "present" if keep_name else "saved"}
    assert [path.name for path in (state / "hash.1").iterdir()] == ["job.saved"]


def test_an_exchange_that_is_interrupted_anywhere_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CutError(Exception):
        """The power is off."""

    steps = 0
    rename, touch = Path.rename, Path.touch

    def limited(call: Callable[..., Any], most: int) -> Callable[..., Any]:
        def run(*given: Any, **more: Any) -> Any:
            nonlocal steps
            if steps == most:
                raise CutError
            steps += 1
            return call(*given, **more)

        return run

    for most in range(100):
        folder = tmp_path / str(most)
        state, work = folders(folder)
        steps = 0
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", limited(rename, most))
            patch.setattr(Path, "touch", limited(touch, most))
            try:
                restore.swap(state, work, keep_name=False)
                done = True
            except CutError:
                done = False
        restore.swap(state, work, keep_name=False)
        assert content(state) == {**RESTORED, "clustername": "saved"}, most
        shutil.rmtree(folder)
        if done:
            break
    assert done
    assert most > 8


PLACES = {"DATABASE": DATABASE, "LOADED": database.LOADED, "FORMER": database.FORMER}


class Tables:
    """A MariaDB that knows which tables each database has, and takes the statements of `database`.

    It is held to the real one by tests/cluster/test_backup_cluster.py.
    """

    def __init__(self, **tables: list[str]) -> None:
        self.tables = {PLACES[name]: list(given) for name, given in tables.items()}

    def __call__(self, *_argv: str, stdin: str = "", **_options: Any) -> str:
        printed = ""
        for statement in stdin.split(";"):
            words = statement.split()
            if words[:1] == ["SELECT"]:
                printed = "\n".join(self.tables.get(words[-1].strip("'"), []))
            elif words[:2] == ["DROP", "DATABASE"]:
                self.tables.pop(words[-1], None)
            elif words[:2] == ["CREATE", "DATABASE"]:
                self.tables.setdefault(words[-1], [])
            elif words[:2] == ["RENAME", "TABLE"]:
                self._rename(statement.partition("TABLE")[2])
        return printed

    def _rename(self, moves: str) -> None:
        for move in moves.split(","):
            source, target = (part.strip().replace("`", "").split(".") for part in move.split(" TO "))
            self.tables[source[0]].remove(source[1])
            assert target[1] not in self.tables[target[0]], "a table of this name is there"
            self.tables[target[0]].append(target[1])


def test_a_loaded_accounting_takes_the_place_of_the_present_one() -> None:
    db = Tables(DATABASE=["a", "b"], LOADED=["b", "c"])
    database.take_place(db)
    wanted = {DATABASE: ["b", "c"], database.FORMER: ["a", "b"]}
    assert db.tables == wanted
    database.take_place(db)
    assert db.tables == wanted, "a repetition changes nothing"
    database.drop_former(db)
    assert db.tables == {DATABASE: ["b", "c"]}


def test_jobs_that_ran_at_the_backup_lose_their_nodes_and_the_others_keep_theirs() -> None:
    class Slurm(Control):
        def update_node(self, nodes: Any, **change: Any) -> None:
            names = list(nodes)
            self.calls.append((names, change["state"]))
            if change["state"] == "DOWN":
                self.queue[5] = job(5, "PENDING", restarts=1)
                self.queue[6] = job(6, "NODE_FAIL")

    off = [node(f"debug-{n}", "ALLOCATED", "CLOUD", "POWERED_DOWN") for n in range(3)]
    control = Slurm(
        [*off, node("debug-3", "ALLOCATED"), node("debug-4", "ALLOCATED")],
        [
            job(5, nodes=("debug-0", "debug-1"), start_time=10.0),
            job(6, nodes=("debug-3", "gone-1"), start_time=20.0),
            job(7, nodes=("debug-4",), start_time=120.0),
            job(8, "PENDING", start_time=10.0),
        ],
    )
    assert restore.release_lost_nodes(control, since=100.0) == 2
    assert control.calls[:3] == [
        (["debug-0", "debug-1", "debug-3"], "DOWN"),
        (["debug-0", "debug-1"], "IDLE"),
        (["debug-3"], "RESUME"),
    ]
    assert [call for call in control.calls[3:] if 5 in call], "it may start at once"


def test_a_node_that_an_interrupted_restore_has_left_down_is_no_administrators() -> None:
    """The elastic daemon gives it back."""
    left = node("debug-0", "DOWN", "CLOUD", reason=restore.REASON)
    assert not is_admin_disabled(left)


def test_a_cluster_without_lost_jobs_is_left_alone() -> None:
    control = Control([node("debug-0")], [job(8, "PENDING"), job(9, "COMPLETED", start_time=1.0)])
    assert restore.release_lost_nodes(control, since=100.0) == 0
    assert control.calls == []


def test_systemd_has_the_boot_before_anybody_is_told(tmp_path: Path) -> None:
    its = settings(tmp_path, design(isolation="container"))
    done: list[str] = []

    def run(*argv: str, **_options: Any) -> str:
        done.append(" ".join(argv))
        return ""

    restore._boot(its, run, done.append)
    assert done == [
        f"systemctl restart --no-block {restore.BOOT}",
        "the controller boots with it: jobs and commands wait",
        f"systemctl start {restore.BOOT}",
    ]
    work = tmp_path / "var" / "spool" / "slurmctld" / restore.WORK
    work.mkdir(parents=True)
    journal = restore.Journal("test", 1.0, accounting=False, sha256="0" * 64)
    restore._note(Folders(its), journal)
    assert restore.pending(Folders(its)) == journal
    with pytest.raises(BackupError) as error:
        restore._boot(its, run, done.append)
    assert error.value.code == "restore.boot-failed"
