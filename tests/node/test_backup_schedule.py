"""Scheduled backups: when one is due, what is pruned, and what a status says of them."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cli.console import status as console
from cli.providers import condition
from node.backup import archive, record, schedule, take, timer
from node.backup.archive import BackupError, Manifest
from node.bootstrap.vm.clouds import local
from node.design.model import Backup, Settings
from node.system import subprocesses
from tests.support.checkout import ROOT
from tests.support.doubles import FakeControl, design, settings
from tests.support.recorded import machine

SCHEMA = json.loads((ROOT / "infra" / "schema" / "status.json").read_text())["properties"]["backup"]
HOUR = 3600.0


class Control(FakeControl):
    following = 8

    def run(self, *command: str) -> str:
        if command == ("scontrol", "show", "config"):
            return f"FirstJobId              = 1\nNEXT_JOB_ID             = {self.following}\n"
        return super().run(*command)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bucket, which the local cloud has in a folder."""
    made = tmp_path / "bucket"
    made.mkdir()
    monkeypatch.setattr(local, "BACKUPS", str(made))
    return made


@pytest.fixture
def backup_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    cluster_design = design(isolation="container", backup=Backup("/srv/backups", 24, 3))
    found = settings(tmp_path / "root", cluster_design)
    (tmp_path / "root" / "var" / "lib" / "slurm-stacks").mkdir(parents=True)
    stand_in(tmp_path, monkeypatch, time.time)
    return found


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: Callable[[], float]) -> None:
    """Let a backup be taken of nothing: tests/cluster/test_backup_cluster.py takes real ones."""

    @contextmanager
    def taken(*_given: Any) -> Iterator[tuple[Manifest, Path]]:
        content = tmp_path / "content"
        content.write_bytes(b"packed")
        digest = archive.digest(content)
        try:
            yield Manifest("t", "test", now(), "slurm 22.05.8", False, 1, 6, 6, digest), content
        finally:
            for left in tmp_path.glob("*.backup.tar"):
                left.unlink()

    monkeypatch.setattr(take, "taken", taken)


def due(backup_settings: Settings, control: Control | None = None) -> None:
    schedule.run_due(backup_settings, Path("settings.json"), control or Control(), no_command)


def no_command(*_argv: str, **_options: Any) -> str:
    raise AssertionError("nothing is run")


def shown(backup_settings: Settings, at: float | None = None) -> dict[str, Any]:
    found = record.status(backup_settings, lambda: time.time() if at is None else at)
    assert found is not None
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


def test_a_backup_is_made_when_it_is_due_and_not_before(backup_settings: Settings, folder: Path) -> None:
    assert shown(backup_settings)["last"] is None
    due(backup_settings)
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert archive.read(file).name == file.name
    last = shown(backup_settings)["last"]
    assert (last["name"], last["place"], last["bytes"]) == (file.name, "/srv/backups", 6)
    due(backup_settings)
    assert list(folder.iterdir()) == [file]
    # A day later, by the record.
    noted = record.read(backup_settings)
    noted["scheduled"]["at"] -= 24 * HOUR
    file.rename(file.with_name("t-20200101T000000Z.backup.tar"))
    (Path(str(backup_settings.site.root)) / "var/lib/slurm-stacks" / record.RECORD).write_text(
        json.dumps(noted)
    )
    due(backup_settings)
    assert len(list(folder.iterdir())) == 2


def test_a_cluster_without_a_job_saves_nothing(backup_settings: Settings, folder: Path) -> None:
    control = Control()
    control.following = 1
    due(backup_settings, control)
    assert list(folder.iterdir()) == []
    assert shown(backup_settings)["failure"] is None


def test_old_backups_of_this_cluster_go_and_nothing_else(backup_settings: Settings, folder: Path) -> None:
    old = [f"t-2020010{day}T000000Z.backup.tar" for day in range(1, 6)]
    others = ["t-notes.txt", "other-20200101T000000Z.backup.tar", "t-2-20200101T000000Z.backup.tar"]
    for name in (*old, *others):
        (folder / name).write_text("x")
    made = schedule.back_up(backup_settings, Path("settings.json"), Control(), no_command)
    assert sorted(made["removed"]) == old[:3]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*old[3:], *others, made["name"]])
    assert schedule.listed(backup_settings) == {
        "bucket": "/srv/backups",
        "names": [made["name"], *reversed(old[3:])],
    }


def test_a_failure_is_noted_and_the_next_success_clears_it(
    backup_settings: Settings,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    due(backup_settings)
    with monkeypatch.context() as patch:
        patch.setattr(local.Folder, "put", refuse)
        with pytest.raises(BackupError) as error:
            schedule.back_up(backup_settings, Path("settings.json"), Control(), no_command)
    assert error.value.code == "backup.bucket"
    found = shown(backup_settings)
    assert "No space left" in found["failure"]["message"]
    assert found["last"] is not None
    (warning,) = condition.backups({"backup": found}, "lab")
    assert "No space left" in warning.found
    console._show_backup(found)
    assert "failed: " in capsys.readouterr().out
    schedule.back_up(backup_settings, Path("settings.json"), Control(), no_command)
    assert shown(backup_settings)["failure"] is None
    assert list(condition.backups({"backup": shown(backup_settings)}, "lab")) == []


def refuse(*_given: object) -> None:
    raise OSError(28, "No space left on device")


def test_backups_that_do_not_come_are_late(backup_settings: Settings, folder: Path) -> None:
    due(backup_settings)
    assert shown(backup_settings)["late"] is False
    found = shown(backup_settings, time.time() + 49 * HOUR)
    assert found["late"] is True
    (warning,) = condition.backups({"backup": found}, "lab")
    assert "48 hours" in warning.found


def test_without_a_schedule_there_is_nothing_to_say(backup_settings: Settings, folder: Path) -> None:
    without = dataclasses.replace(
        backup_settings, design=dataclasses.replace(backup_settings.design, backup=None)
    )
    assert record.status(without) is None
    due(without)
    assert list(folder.iterdir()) == []
    with pytest.raises(BackupError) as error:
        schedule.listed(without)
    assert error.value.code == "backup.no-bucket"
    # A backup to a file counts as well.
    manifest = Manifest("t", "test", 5.0, "slurm 22.05.8", False, 1, 6, 6, "0" * 64)
    record.note_success(without, manifest, "a file", 1.0)
    assert shown(without)["last"]["place"] == "a file"
    assert list(condition.backups({"backup": shown(without)}, "lab")) == []


def test_the_newest_or_a_named_backup_is_fetched(
    backup_settings: Settings, folder: Path, tmp_path: Path
) -> None:
    for day in (1, 2):
        (folder / f"t-2020010{day}T000000Z.backup.tar").write_text(str(day))
    schedule.fetch(backup_settings, "", tmp_path / "newest")
    schedule.fetch(backup_settings, "t-20200101T000000Z.backup.tar", tmp_path / "named")
    assert ((tmp_path / "newest").read_text(), (tmp_path / "named").read_text()) == ("2", "1")
    for name in ("../etc/passwd", "t-20200103T000000Z.backup.tar"):
        with pytest.raises(BackupError) as error:
            schedule.fetch(backup_settings, name, tmp_path / "none")
        assert error.value.code == "restore.not-there"


def test_the_timer_is_what_systemd_takes_and_goes_with_the_schedule(tmp_path: Path) -> None:
    units = tmp_path / "units"
    context, run = machine(tmp_path, "controller", "controller", backup=Backup("s3://lab-backups"))
    assert timer.set_timer(context, units) == "a backup to s3://lab-backups every 24 hours"
    calls = ["systemctl daemon-reload", "systemctl start slurm-stacks-backup.timer"]
    assert run.calls == calls
    assert timer.set_timer(context, units)
    assert run.calls == [*calls, calls[1]], "systemd reads the units again only if they have changed"
    names = sorted(path.name for path in units.iterdir())
    assert names == ["slurm-stacks-backup.service", "slurm-stacks-backup.timer"]
    tool = Path(str(context.folders.code)) / "bin" / "slurm-stacks"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    env = {"PATH": subprocesses.SEARCH, "SYSTEMD_UNIT_PATH": f"{units}:"}
    done = subprocesses.run(["systemd-analyze", "verify", *(str(units / name) for name in names)], env)
    assert (done.status, str(units) in done.errors) == (0, False), done.errors

    without = dataclasses.replace(
        context.settings, design=dataclasses.replace(context.settings.design, backup=None)
    )
    context.settings = without
    assert timer.set_timer(context, units) is None
    assert list(units.iterdir()) == []
    assert run.calls[-1] == "systemctl stop slurm-stacks-backup.timer"
