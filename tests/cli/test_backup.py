"""`./cluster backup` and `restore` on the engineer's machine: the file, and what the controller refuses."""

from __future__ import annotations

import json
import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.commands import backup
from cli.providers.local.provider import LocalProvider
from infra import os_errors
from infra.config import parse
from infra.errors import EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE, NotUpError
from infra.program.stack import Stack
from node.backup import archive
from node.backup.archive import Manifest
from operations.access import Command, StackUp
from operations.local import machine_access
from operations.local.run_directory import RunDirectory
from tests.support import sentences
from tests.support.stack_values import values

Answer = Callable[[str], None]


@pytest.fixture
def up(tmp_path: Path) -> StackUp:
    return StackUp.of(Stack(tmp_path, "test"), parse(values("local"), "test"))


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """The file with the words that the controller's command got."""
    return tmp_path / "asked"


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Path) -> Answer:
    """Sets the shell lines that answer in place of the controller's command."""

    def set_lines(lines: str) -> None:
        def on_controller(_self: object, _up: StackUp, argv: Any, *, booting: bool) -> Command:
            line = f"printf '%s\\n' {shlex.join(argv)} >{shlex.quote(str(asked))}\n{lines}"
            # A restore, and what gives one up, is for a controller whose boot has failed, too.
            assert booting == ("restore" in argv)
            return Command(["sh", "-c", line], {})

        monkeypatch.setattr(LocalProvider, "on_controller", on_controller)

    return set_lines


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A backup."""
    (tmp_path / "parts" / "state").mkdir(parents=True)
    (tmp_path / "parts" / "state" / "job_state").write_text("jobs")
    content = tmp_path / "content"
    unpacked = archive.pack(tmp_path / "parts", content)
    given = (unpacked, content.stat().st_size, archive.digest(content))
    made = tmp_path / "made.backup.tar"
    with made.open("wb") as output:
        manifest = Manifest("c", "test", 1_800_000_000.0, "slurm 22.05.8", True, 1, *given)
        archive.write(output, manifest, content)
    return made


def failing(code: str, message: str) -> str:
    line = json.dumps({"code": code, "message": message})
    return f"echo working >&2; echo {shlex.quote(line)} >&2; exit 1"


def test_a_backup_is_private_checked_and_whole(
    up: StackUp,
    controller: Answer,
    file: Path,
    tmp_path: Path,
    asked: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    controller(f"echo 'almost done' >&2; cat {shlex.quote(str(file))}")
    target = tmp_path / "mine.tar"
    found = backup.make(up, target, bucket=False)
    assert found == {"backup": archive.read(file).as_json(), "file": str(target)}
    assert target.read_bytes() == file.read_bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert asked.read_text().split() == ["slurm-stacks", "backup"]
    assert "almost done" in capsys.readouterr().err
    backup.show(found, as_json=False)
    assert str(target) in capsys.readouterr().out
    backup.show(found, as_json=True)
    assert json.loads(capsys.readouterr().out) == found


def test_without_a_name_it_is_named_after_the_cluster_and_the_time(
    up: StackUp, controller: Answer, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    controller(f"cat {shlex.quote(str(file))}")
    assert backup.make(up, None, bucket=False)["file"] == "c-20270115T080000Z.backup.tar"
    with sentences.raises("backup.exists", "c-20270115T080000Z.backup.tar") as error:
        backup.make(up, None, bucket=False)
    assert error.value.exit_code == EXIT_USAGE
    assert [path.name for path in folder.iterdir()] == ["c-20270115T080000Z.backup.tar"]


def test_what_fails_or_arrives_damaged_leaves_no_file(
    up: StackUp, controller: Answer, file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    target = folder / "mine.tar"
    controller(f"head -c 2000 {shlex.quote(str(file))}")
    with sentences.raises("backup.damaged", compared=False):
        backup.make(up, target, bucket=False)
    controller(f"head -c 700 {shlex.quote(str(file))}; exit 7")
    with sentences.raises("backup.failed", "status 7"):
        backup.make(up, target, bucket=False)
    controller(failing("backup.no-slurmctld", "slurmctld does not run"))
    with sentences.raises("backup.no-slurmctld") as error:
        backup.make(up, target, bucket=False)
    assert error.value.exit_code == EXIT_FAILED
    controller(failing("backup.not-root", "it takes root"))
    with sentences.raises("backup.not-root") as error:
        backup.make(up, target, bucket=False)
    assert error.value.exit_code == EXIT_REFUSED
    assert list(folder.iterdir()) == []


def test_a_place_that_cannot_be_is_refused_before_the_cluster_is_asked(
    up: StackUp, controller: Answer, file: Path, tmp_path: Path, asked: Path
) -> None:
    controller("exit 9")
    with sentences.raises("backup.exists", file):
        backup.make(up, file, bucket=False)
    with sentences.raises("backup.no-folder"):
        backup.make(up, tmp_path / "none" / "mine.tar", bucket=False)
    with sentences.raises("backup.two-places", file):
        backup.make(up, file, bucket=True)
    with sentences.raises("restore.no-source"):
        backup.restore(up, None, bucket=False, replace=False)
    with sentences.raises("restore.no-file"):
        backup.restore(up, str(tmp_path / "none"), bucket=False, replace=False)
    (tmp_path / "other").write_text("no backup")
    with sentences.raises("backup.damaged", tmp_path / "other", compared=False):
        backup.restore(up, str(tmp_path / "other"), bucket=False, replace=False)
    assert not asked.exists()


def test_a_restore_sends_the_file_and_says_what_came_of_it(
    up: StackUp,
    controller: Answer,
    file: Path,
    tmp_path: Path,
    asked: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    got = tmp_path / "got"
    answer = {"backup": archive.read(file).as_json(), "jobs": 1, "pending": 1, "next_job_id": 8}
    controller(f"cat >{shlex.quote(str(got))}; echo {shlex.quote(json.dumps(answer))}")
    assert backup.restore(up, str(file), bucket=False, replace=True) == answer
    assert got.read_bytes() == file.read_bytes()
    assert asked.read_text().split() == ["slurm-stacks", "restore", "--replace"]
    backup.show(answer, as_json=False)
    assert "the next job is 8" in capsys.readouterr().out
    for source, words in ((None, "--bucket"), ("a.tar", "--bucket=a.tar")):
        assert backup.restore(up, source, bucket=True, replace=False) == answer
        assert asked.read_text().split()[2:] == [words]
    controller(failing("restore.not-empty", "this cluster has had 3 jobs"))
    with sentences.raises("restore.not-empty") as error:
        backup.restore(up, str(file), bucket=False, replace=False)
    assert error.value.exit_code == EXIT_REFUSED


def test_backups_in_the_bucket_are_listed(
    up: StackUp, controller: Answer, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    controller("""echo '{"bucket": "s3://b", "names": ["c-2.tar", "c-1.tar"]}'""")
    backup.show(backup.list_all(up), as_json=False)
    assert capsys.readouterr().out == "c-2.tar\nc-1.tar\n"
    assert asked.read_text().split()[1:] == ["backup", "--list"]


def test_processes_and_batch_have_no_backups(
    up: StackUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.providers.local.provider._standing", lambda up: RunDirectory(tmp_path))
    with sentences.raises("backup.processes") as error:
        backup.make(up, None, bucket=False)
    assert error.value.exit_code == EXIT_REFUSED
    batch = StackUp.of(Stack(tmp_path, "aws-batch"), parse(values("batch"), "aws-batch"))
    with sentences.raises("backup.batch"):
        backup.restore(batch, None, bucket=True, replace=False)


def test_a_restore_is_given_up_also_where_the_boot_has_failed(
    up: StackUp, controller: Answer, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for moved, sentence in ((True, "the state of before is in force again"), (False, "nothing was changed")):
        answer = {"cancelled": True, "moved_back": moved}
        controller(f"echo {shlex.quote(json.dumps(answer))}")
        told = backup.cancel(up, None, bucket=False, replace=False)
        assert told == answer
        assert asked.read_text().split() == ["slurm-stacks", "restore", "--cancel"]
        backup.show(told, as_json=False)
        assert capsys.readouterr().out == f"the restore is given up; {sentence}\n"
    for code in ("restore.none", "restore.in-place"):
        controller(failing(code, "it cannot be given up"))
        with sentences.raises(code) as error:
            backup.cancel(up, None, bucket=False, replace=False)
        assert error.value.exit_code == EXIT_REFUSED
    for source, bucket, replace in (("x", False, False), (None, True, False), (None, False, True)):
        with sentences.raises("restore.cancel-alone") as error:
            backup.cancel(up, source, bucket=bucket, replace=replace)
        assert error.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("answer", ["", "[]", "[" * 60_000, '{"a": NaN}', '{"a": 1e400}', "7"])
def test_an_answer_that_cannot_be_read_is_one_sentence(
    up: StackUp, controller: Answer, tmp_path: Path, answer: str
) -> None:
    (tmp_path / "answer").write_text(answer)
    controller(f"cat {shlex.quote(str(tmp_path / 'answer'))}")
    with sentences.raises("backup.answer", compared=False):
        backup.list_all(up)


def test_times_that_are_none_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    manifest = {"cluster": "c", "created": 1e300, "size": 1, "jobs": 0, "accounting": False}
    backup.show({"backup": manifest, "file": "x"}, as_json=False)
    assert "c as of 1e+300" in capsys.readouterr().out


def test_a_controller_whose_boot_has_failed_can_be_asked(
    up: StackUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "run")
    monkeypatch.setattr(RunDirectory, "containers", property(lambda _self: True))
    monkeypatch.setattr(machine_access, "run_directory", lambda _up: run)
    monkeypatch.setattr(machine_access, "controller", lambda _run: 17)
    monkeypatch.setattr(machine_access, "command", lambda _run, argv: Command(list(argv), {}))
    asked = LocalProvider().on_controller(up, ["slurm-stacks"], booting=True)
    assert asked.argv == ["slurm-stacks"]
    with pytest.raises(NotUpError):
        LocalProvider().on_controller(up, ["slurm-stacks"])
    monkeypatch.setattr(machine_access, "controller", lambda _run: None)
    with pytest.raises(NotUpError):
        LocalProvider().on_controller(up, ["slurm-stacks"], booting=True)


def test_a_full_disk_here_is_named_and_the_program_is_ended(
    up: StackUp, controller: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = tmp_path / "draft"
    draft.touch()
    monkeypatch.setattr("tempfile.mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), str(draft)))
    # It would write for ever.
    controller("exec cat /dev/zero")
    target = tmp_path / "mine.tar"
    with pytest.raises(OSError, match="No space left") as error:
        backup.make(up, target, bucket=False)
    told = os_errors.explain(error.value)
    assert (told.code, f"no space left for {target}" in str(told)) == ("system.no-space", True)
    assert not draft.exists()
