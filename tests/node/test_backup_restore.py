"""A restore: what it refuses and exchanges, that an interruption anywhere loses nothing, and lost nodes."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.slurm_releases import table
from node.backup import archive, database, restore, restore_boot, restore_cancel, restore_journal
from node.backup.archive import BackupError, Manifest
from node.bootstrap.accounting import DATABASE
from node.bootstrap.command import CommandError
from node.bootstrap.vm import host_keys
from node.design.folders import Folders
from node.design.model import SlurmSettings
from node.elastic.view import is_admin_disabled
from node.slurm import version
from tests.support.doubles import FakeControl, design, job, node, settings
from tests.support.recorded import machine

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
    work = state / restore_journal.WORK
    new = work / restore_journal.PARTS / archive.STATE
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
    restore_boot.swap(state, work, keep_name=keep_name)
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
                restore_boot.swap(state, work, keep_name=False)
                done = True
            except CutError:
                done = False
        restore_boot.swap(state, work, keep_name=False)
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
    assert restore_boot.release_lost_nodes(control, since=100.0) == 2
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
    assert restore_boot.release_lost_nodes(control, since=100.0) == 0
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
    work = tmp_path / "var" / "spool" / "slurmctld" / restore_journal.WORK
    work.mkdir(parents=True)
    journal = restore_journal.Journal("test", 1.0, accounting=False, sha256="0" * 64)
    restore_journal.write_journal(Folders(its), journal)
    assert restore_journal.pending(Folders(its)) == journal
    with pytest.raises(BackupError) as error:
        restore._boot(its, run, done.append)
    assert error.value.code == "restore.boot-failed"


# Giving up a restore, and a journal that cannot be read, at every moment of a restore's life.

OLD = {
    "job_state": "present", "job_state.old": "present", "only_present": "present", "node_state": "present",
    "clustername": "present",
}  # fmt: skip
NEW = {**RESTORED, "clustername": "saved"}
OLD_TABLES, NEW_TABLES = ["a", "b"], ["b", "c"]


MACHINES = '{"id":"m-1"}\n'
RECORD = {
    "restored-00000000-2026-01-01.jsonl.gz": MACHINES,
    "restored-00000000-restored-7-2025-01-01.jsonl.gz": "",
}


class PowerOffError(BaseException):
    """The machine has lost its power."""


class Head:
    """A controller with a prepared restore. Its boot does what is done to the state, and may lose its power.

    Args:
        accounting: Whether the backup has an accounting.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, accounting: bool) -> None:
        monkeypatch.setattr(host_keys, "SSHD", Path("/bin/true"))
        # A real power loss is not in reach of a test, and a disk may take long.
        monkeypatch.setattr(os, "fsync", lambda _: None)
        self.context, _ = machine(
            folder, "controller", "controller", name="test", slurm=SlurmSettings(accounting=accounting)
        )
        self.state = self.context.path(self.context.folders.state)
        self.state.parent.mkdir(parents=True)
        made, work = folders(folder / "made")
        made.rename(self.state)
        self.work = self.state / restore_journal.WORK
        assert work.name == self.work.name
        for place, word in (
            (self.context.at("etc/ssh"), "own"),
            (self.work / restore_journal.PARTS / "ssh", "saved"),
        ):
            place.mkdir(parents=True)
            (place / "ssh_host_ed25519_key").write_text(word)
            (place / "ssh_host_ed25519_key.pub").write_text(f"ssh-ed25519 {word}")
        record = self.work / restore_journal.PARTS / archive.MACHINES
        record.mkdir()
        (record / "2026-01-01.jsonl").write_text(MACHINES)
        (record / "restored-7-2025-01-01.jsonl.gz").write_bytes(gzip.compress(b""))
        (record / "notes.txt.gz").write_text("")
        self.tables = (
            Tables(DATABASE=OLD_TABLES, LOADED=NEW_TABLES) if accounting else Tables(DATABASE=OLD_TABLES)
        )
        self.context.run = self.run
        self.accounting = accounting
        self.began_with: dict[str, str] | None = None
        self.calls: list[str] = []
        self.journal = restore_journal.Journal("test", 1.8e9, accounting=accounting, sha256="0" * 64)
        restore_journal.write_journal(self.context.folders, self.journal)

    def run(self, *argv: str, stdin: str = "", **_options: Any) -> str:
        self.calls.append(" ".join(argv))
        if argv[:2] == ("systemctl", "start"):
            self.boot()
        return self.tables(*argv, stdin=stdin)

    def boot(self) -> None:
        restore_boot.put_in_place(self.context)
        if self.accounting:
            restore_boot.take_database(self.context)
        restore_boot.note_in_place(self.context)
        # slurmctld starts.
        self.began_with = content(self.state)
        restore_boot.finish(self.context, Control())

    def cancel(self) -> dict[str, Any]:
        return restore_cancel.cancel(self.context.settings, self.run, say=self.calls.append)

    def machines(self) -> dict[str, str]:
        """Return the record of machines that the restore has brought."""
        folder = Path(str(self.context.folders.elastic)) / "machines"
        files = [file for file in folder.glob("*") if not file.name.startswith(".")]
        return {file.name: gzip.decompress(file.read_bytes()).decode() for file in files}

    def is_of_before(self) -> bool:
        key = (self.context.at("etc/ssh") / "ssh_host_ed25519_key").read_text()
        has = content(self.state), key, self.tables.tables[DATABASE], self.machines()
        return has == (OLD, "own", OLD_TABLES, {})

    def is_restored(self) -> bool:
        key = (self.context.at("etc/ssh") / "ssh_host_ed25519_key").read_text()
        named = NEW if self.accounting else {**NEW, "clustername": "present"}
        tables = NEW_TABLES if self.accounting else OLD_TABLES
        has = content(self.state), key, self.tables.tables[DATABASE], self.machines()
        return has == (named, "saved", tables, RECORD)

    def is_clean(self) -> bool:
        return not self.work.exists() and self.tables.tables.keys() == {DATABASE}


def lose_power(patch: pytest.MonkeyPatch, head: Head, most: int) -> list[int]:
    """Let the power fail at one of the changes of files and tables; return the number of changes."""
    count = [0]

    def limited(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **more: Any) -> Any:
            if count[0] >= most:
                raise PowerOffError
            count[0] += 1
            return call(*given, **more)

        return run

    for name in ("rename", "touch", "unlink", "replace"):
        patch.setattr(Path, name, limited(getattr(Path, name)))
    patch.setattr(head.tables, "_rename", limited(head.tables._rename))
    return count


def at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, accounting: bool, do: Callable[[Head], None]
) -> Iterator[Head]:
    """Yield a controller whose power has failed at each of the moments of `do`, and at last at none."""
    for most in range(200):
        head = Head(tmp_path / str(most), monkeypatch, accounting=accounting)
        done = False
        with monkeypatch.context() as patch:
            lose_power(patch, head, most)
            with contextlib.suppress(PowerOffError):
                do(head)
                done = True
        yield head
        if done:
            assert most > 10
            return
    raise AssertionError("it has no end")


@pytest.mark.parametrize("accounting", [True, False])
def test_a_restore_is_given_up_or_in_its_place_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accounting: bool
) -> None:
    outcomes = set()
    for head in at_every_moment(tmp_path, monkeypatch, accounting=accounting, do=Head.boot):
        try:
            outcome = str(head.cancel()["moved_back"])
        except BackupError as error:
            outcome = error.code
            head.boot()
            assert head.is_restored()
        else:
            assert head.is_of_before()
            assert head.began_with == OLD, "slurmctld has begun with the state of before"
        outcomes.add(outcome)
        assert head.is_clean()
    assert outcomes == {"False", "True", "restore.in-place", "restore.none"}


@pytest.mark.parametrize("accounting", [True, False])
def test_giving_up_is_completed_after_a_power_loss_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accounting: bool
) -> None:
    def half_way(head: Head) -> None:
        state = head.context.path(head.context.folders.state)
        restore_boot._keep_host_keys(head.context, head.work)
        restore_boot.swap(state, head.work, keep_name=not accounting)
        restore_boot._host_keys(head.context, head.work / restore_journal.PARTS / "ssh", "the backup")
        if accounting:
            database.take_place(head.run)

    def given_up(head: Head) -> None:
        with monkeypatch.context() as patch:
            patch.undo()
            half_way(head)
        head.cancel()

    for head in at_every_moment(tmp_path, monkeypatch, accounting=accounting, do=given_up):
        head.boot()
        if head.work.exists() or head.is_restored():
            # The power failed before the restore was given up, so the boot has completed it.
            assert head.is_restored()
        else:
            assert head.is_of_before()
        assert not head.work.exists()


DAMAGED = (
    b"", b"{", b"[" * 60_000, b"7", b"\xff", b"{}", b'{"cluster": "test"}',
    *(
        json.dumps(
            {"cluster": "test", "created": 1.0, "accounting": True, "sha256": "0" * 64, "phase": "prepared",
             "swapped": 0.0} | change
        ).encode()
        for change in (
            {"created": 1e300}, {"created": float("inf")}, {"created": float("nan")}, {"created": True},
            {"created": -1e18}, {"swapped": 1e300}, {"phase": "other"}, {"phase": 7}, {"accounting": 1},
            {"sha256": 7}, {"cluster": None}, {"extra": 1}, {"cluster": "x" * 100_000},
        )
    ),
)  # fmt: skip


@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_journal_does_not_stop_the_boot_and_is_removed_by_giving_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bytes
) -> None:
    head = Head(tmp_path, monkeypatch, accounting=True)
    (head.work / restore_journal.JOURNAL).write_bytes(damaged)
    head.boot()
    assert head.is_of_before()
    assert "restore --cancel --stack test" in head.context.report.content["facts"]["restore"]
    with pytest.raises(BackupError) as error:
        restore.stage(head.context.settings, tmp_path / "none", Control(), head.run, replace=True, say=print)
    assert error.value.code == "restore.journal"
    assert head.cancel() == {"cancelled": True, "moved_back": False}
    assert head.is_of_before()
    assert head.is_clean()


def test_a_journal_that_is_damaged_at_any_moment_leaves_one_whole_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = set()
    for head in at_every_moment(tmp_path, monkeypatch, accounting=True, do=Head.boot):
        if (head.work / restore_journal.JOURNAL).exists():
            (head.work / restore_journal.JOURNAL).write_bytes(b"\0" * 100)
        head.boot()
        assert head.is_of_before() != head.is_restored()
        assert head.began_with in (OLD, NEW)
        outcomes.add(head.is_restored())
    assert outcomes == {True, False}


def test_what_is_not_there_cannot_be_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(tmp_path, monkeypatch, accounting=False)
    (head.work / restore_journal.JOURNAL).unlink()
    # It died while it unpacked.
    assert head.cancel() == {"cancelled": True, "moved_back": False}
    assert not any("systemctl" in call for call in head.calls), "nothing but its files was there"
    with pytest.raises(BackupError) as error:
        head.cancel()
    assert error.value.code == "restore.none"
    assert head.is_of_before()


def test_a_boot_that_fails_keeps_what_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(tmp_path, monkeypatch, accounting=True)
    with monkeypatch.context() as patch:
        lose_power(patch, head, 5)
        with pytest.raises(PowerOffError):
            head.boot()

    def fails() -> None:
        raise CommandError("systemctl start: exit status 1", 1)

    with monkeypatch.context() as patch:
        patch.setattr(head, "boot", fails)
        with pytest.raises(BackupError, match="is given up, and the controller's boot") as error:
            head.cancel()
    assert error.value.code == "restore.boot-failed"
    file = tmp_path / "made.tar"
    monkeypatch.setattr(archive, "read", lambda *_: MANIFEST)
    with pytest.raises(BackupError, match="is being given up"):
        restore.stage(head.context.settings, file, Control(), head.run, replace=True, say=print)
    head.boot()
    assert head.is_of_before()
    assert head.is_clean()


def test_what_slurmctld_cannot_begin_with_is_replaced_by_another_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no way back from it, and no boot ends the restore."""
    head = Head(tmp_path, monkeypatch, accounting=False)
    restore_boot.put_in_place(head.context)
    restore_boot.note_in_place(head.context)
    with pytest.raises(BackupError, match="--replace") as error:
        head.cancel()
    assert error.value.code == "restore.in-place"
    other = changed(sha256="1" * 64)
    monkeypatch.setattr(archive, "read", lambda *_: other)
    prepared: list[str] = []

    def prepare(*_given: Any, **_more: Any) -> Manifest:
        prepared.append("anew")
        return other

    monkeypatch.setattr(restore, "_prepare", prepare)
    monkeypatch.setattr(restore, "_boot", lambda *_: prepared.append("boot"))

    def stage(*, replace: bool) -> None:
        file = tmp_path / "made.tar"
        restore.stage(
            head.context.settings, file, Control(), head.run, replace=replace, say=head.calls.append
        )

    with pytest.raises(BackupError, match="--replace") as error:
        stage(replace=False)
    assert (error.value.code, prepared) == ("restore.other-under-way", [])
    stage(replace=True)
    assert prepared == ["anew", "boot"]
    # That of the same backup is continued.
    prepared.clear()
    restore_journal.write_journal(
        head.context.folders, restore_journal.Journal("test", 1.8e9, accounting=False, sha256="1" * 64)
    )
    stage(replace=True)
    assert prepared == ["boot"]


@pytest.mark.parametrize(
    ("there", "missing"), [(["accounting.sql"], "state"), (["state/"], "accounting.sql")]
)
def test_a_backup_without_a_part_is_refused_before_anything_is_exchanged(
    tmp_path: Path, there: list[str], missing: str
) -> None:

    def make(name: str) -> None:
        if name.startswith("state"):
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).touch()

    for name in there:
        make(name)
    with pytest.raises(BackupError, match=f"no {missing}:") as error:
        restore._check_parts(tmp_path, changed(accounting=True))
    assert error.value.code == "backup.content"
    make(missing)
    restore._check_parts(tmp_path, changed(accounting=True))
