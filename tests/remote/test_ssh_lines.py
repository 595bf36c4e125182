"""The lines for the login machine's shell, run by real shells: no value can break out of its quotes."""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from infra import bundle
from infra.benchmark import Workload
from operations import login_lines

SHELLS = ("sh", "bash")
CHARACTERS = st.characters(exclude_characters="/\0", exclude_categories=["Cs"])
NAMES = st.text(CHARACTERS, min_size=1, max_size=20).filter(lambda name: name not in (".", ".."))
AWKWARD = [
    "it's",
    '"',
    "$(touch pwned)",
    "`touch pwned`",
    "a b",
    "-n",
    "*",
    "\\",
    "\\0",
    "\n",
    "a:b",
    "{}",
    "%s",
    "é–",
]
_ECHO = "import json, sys; print(json.dumps([sys.argv[1:], sys.stdin.buffer.read().decode()]))"
TOOL = f'#!/bin/sh\nexec {shlex.join([sys.executable, "-c", _ECHO])} "$@"\n'


def shell(line: str, stdin: bytes = b"", kind: str = "sh") -> subprocess.CompletedProcess[bytes]:
    """Runs a command as sshd does, with the user's shell and -c."""
    return subprocess.run([kind, "-c", line], input=stdin, capture_output=True, timeout=120, check=False)


def printed(done: subprocess.CompletedProcess[bytes]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().removesuffix("\n")


def tool(folder: Path, text: str = TOOL) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "slurm-stacks"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@settings(max_examples=40, deadline=None)
@given(name=NAMES, folder=NAMES, script=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_folder_and_script_reach_the_tool_as_they_are(name: str, folder: str, script: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        line = login_lines.submit_line(tool(Path(root) / name), folder)
        arguments, stdin = json.loads(printed(shell(line, script.encode())))
    assert arguments == ["submit", f"--run={folder}"]
    assert stdin == script


@settings(max_examples=25, deadline=None)
@given(name=NAMES, digest=NAMES)
def test_any_folder_is_waited_for(name: str, digest: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        apps = f"{root}/{name}"
        late = shell(login_lines.wait_line(apps, digest, 0))
        assert late.returncode == 1
        assert f"{apps}/envs/{digest}" in late.stderr.decode()
        assert "the command logs shows how far it came" in late.stderr.decode()
        (Path(apps) / "envs" / digest).mkdir(parents=True)
        (Path(apps) / "envs" / digest / ".complete").touch()
        assert printed(shell(login_lines.wait_line(apps, digest, 0))) == f"{apps}/envs/{digest}"


def test_a_wait_says_what_it_waits_for_and_ends_when_it_is_there(tmp_path: Path) -> None:
    line = login_lines.wait_line(str(tmp_path), "d", 600)
    with subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
        assert waiting.stderr is not None
        assert f"waiting for the training environment {tmp_path}/envs/d" in waiting.stderr.readline().decode()
        (tmp_path / "envs" / "d").mkdir(parents=True)
        (tmp_path / "envs" / "d" / ".complete").touch()
        assert waiting.wait(60) == 0


# --- staging ---------------------------------------------------------------------------------------------

NAME = "0123456789abcdef"


def project(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / "workload" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def unpack(shared: Path, content: bytes, **changes: Any) -> subprocess.CompletedProcess[bytes]:
    """Stage an archive through standard input; `sent` is the part of it that arrives."""
    line = login_lines.unpack_line(str(shared), NAME, bundle.digest(content))
    sent = changes.get("sent", base64.encodebytes(content))
    return shell(line, sent, changes.get("kind", "sh"))


def staged(shared: Path) -> dict[str, bytes]:
    return dict(bundle.tree(shared / "bench" / NAME / "workload"))


# Random examples found this: GNU tar took the backslash for the beginning of an escape.
@example(name="\\0", files={"a.py": b"x"})
@example(name="\\101", files={"a.py": b"x"})
@settings(max_examples=25, deadline=None)
@given(name=NAMES, files=st.dictionaries(NAMES, st.binary(max_size=50), min_size=1, max_size=4))
def test_any_workload_arrives_whole_in_any_folder(name: str, files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as root:
        content = Workload.of(project(Path(root), files)).archive()
        shared = Path(root) / "x" / name
        assert printed(unpack(shared, content)) == f"{shared}/bench/{NAME}/workload"
        assert staged(shared) == dict(bundle.tree(Path(root) / "workload"))
        assert [path.name for path in (shared / "bench").iterdir()] == [NAME]


def test_whoever_trains_the_same_has_a_folder_of_their_own(tmp_path: Path) -> None:
    printed(unpack(tmp_path, Workload.of(project(tmp_path, {"a.py": b"x"})).archive()))
    made = tmp_path / "bench" / NAME
    assert made.stat().st_mode & 0o7777 == 0o1777, "as /tmp: nobody takes away another's"
    assert (made / "workload").stat().st_mode & 0o022 == 0, "nobody else changes what is staged"


@pytest.mark.parametrize("kind", SHELLS)
@pytest.mark.parametrize("awkward", AWKWARD)
def test_awkward_names(tmp_path: Path, awkward: str, kind: str) -> None:
    content = Workload.of(project(tmp_path, {awkward: b"x", f"{awkward}d/{awkward}": b"y"})).archive()
    shared = tmp_path / f"x{awkward}"
    printed(unpack(shared, content, kind=kind))
    assert staged(shared) == {awkward: b"x", f"{awkward}d/{awkward}": b"y"}
    assert not (tmp_path / "pwned").exists()
    assert not Path("pwned").exists()


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return Workload.of(project(tmp_path, {"model.py": b"1\n" * 50_000, "envs/cpu/uv.lock": b"2\n"})).archive()


@pytest.mark.parametrize(
    "damage",
    [
        lambda sent: sent[: len(sent) // 2],
        lambda sent: b"",
        lambda sent: sent.replace(b"MQox", b"MQoy", 1),
        lambda sent: b"!" + sent,
    ],
    ids=["cut short", "nothing", "a byte changed", "no base64"],
)
def test_a_workload_that_does_not_arrive_whole_is_not_used(
    tmp_path: Path, content: bytes, damage: Callable[[bytes], bytes]
) -> None:
    shared = tmp_path / "shared"
    sent = base64.encodebytes(content)
    assert damage(sent) != sent
    refused = unpack(shared, content, sent=damage(sent))
    assert refused.returncode == 1
    assert b"damaged or cut short, and is not used: run up again" in refused.stderr
    assert not (shared / "bench" / NAME / "workload").exists()
    assert list((shared / "bench").glob(".*")) == []
    printed(unpack(shared, content))
    assert set(staged(shared)) == {"model.py", "envs/cpu/uv.lock"}


def test_a_copy_that_is_there_is_left_alone(tmp_path: Path, content: bytes) -> None:
    shared = tmp_path / "shared"
    (shared / "bench" / NAME / "run").mkdir(parents=True)  # a run's folder may exist before
    printed(unpack(shared, content))
    before = (shared / "bench" / NAME / "workload").stat()
    assert printed(unpack(shared, content, sent=b"")) == f"{shared}/bench/{NAME}/workload"
    after = (shared / "bench" / NAME / "workload").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_staging_that_is_killed_leaves_nothing_that_is_used(tmp_path: Path, content: bytes) -> None:
    shared = tmp_path / "shared"
    line = login_lines.unpack_line(str(shared), NAME, bundle.digest(content))
    with subprocess.Popen(["sh", "-c", line], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as half:
        assert half.stdin is not None
        half.stdin.write(base64.encodebytes(content)[:5000])
        half.stdin.flush()
        half.kill()
    assert not (shared / "bench" / NAME / "workload").exists()
    printed(unpack(shared, content))


def test_nothing_is_at_its_place_before_the_last_step(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, programs = tmp_path / "shared", tmp_path / "bin"
    programs.mkdir()
    (programs / "mv").write_text("#!/bin/sh\nkill -9 $PPID\n")
    (programs / "mv").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    assert unpack(shared, content).returncode == -9
    assert not (shared / "bench" / NAME / "workload").exists()


def test_two_that_stage_at_once_make_one(tmp_path: Path, content: bytes) -> None:
    shared = tmp_path / "shared"
    line = login_lines.unpack_line(str(shared), NAME, bundle.digest(content))
    both = [
        subprocess.Popen(["sh", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)
    ]
    for one in both:
        assert one.stdin is not None
        one.stdin.write(base64.encodebytes(content))
    for one in both:
        one.communicate(timeout=120)
        assert one.returncode == 0
    assert set(staged(shared)) == {"model.py", "envs/cpu/uv.lock"}
    assert list((shared / "bench").glob(".*")) == []


# --- staging beside other users --------------------------------------------------------------------------

ADA, EVE = 2001, 2002
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as other users")


@pytest.fixture
def bench() -> Iterator[Path]:
    """The shared folder's `bench` as the controller makes it: every user may make folders there."""
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        bench = Path(root) / "bench"
        bench.mkdir()
        bench.chmod(0o1777)
        yield bench


def stage_as(user: int, bench: Path, content: bytes, **env: str) -> subprocess.CompletedProcess[bytes]:
    line = login_lines.unpack_line(str(bench.parent), NAME, bundle.digest(content))
    return subprocess.run(
        ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "sh", "-c", line],
        input=base64.encodebytes(content), capture_output=True, timeout=120, check=False, cwd="/",
        env={"PATH": os.environ["PATH"], **env},
    )  # fmt: skip


def plant(user: int, path: Path) -> None:
    """Make what looks like a staged workload, as this user, who owns all of it."""
    path.mkdir(parents=True)
    (path / "model.py").write_text("print('evil')")
    for one in (path.parent, path, path / "model.py"):
        os.chown(one, user, user)


@as_root
def test_nobodys_files_run_as_another_user(bench: Path, content: bytes) -> None:
    plant(EVE, bench / NAME / "workload")
    refused = stage_as(ADA, bench, content)
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert b"whose files would run as you. Have it removed, or have an administrator" in refused.stderr
    # Also if only the folder above is another's, who could exchange what is in it.
    shutil.rmtree(bench / NAME / "workload")
    assert stage_as(ADA, bench, content).returncode == 1
    assert not (bench / NAME / "workload").exists()


@as_root
@pytest.mark.parametrize("above", [True, False], ids=["her folder", "root's folder"])
def test_what_root_stages_takes_the_place_of_another_users_and_is_for_everybody(
    bench: Path, content: bytes, above: bool
) -> None:
    plant(EVE, bench / NAME / "workload")
    (bench / NAME / "her-run").mkdir()
    if not above:
        os.chown(bench / NAME, 0, 0)
    printed(unpack(bench.parent, content))
    assert set(staged(bench.parent)) == {"model.py", "envs/cpu/uv.lock"}
    for path in (bench / NAME, bench / NAME / "workload", bench / NAME / "workload" / "model.py"):
        assert path.stat().st_uid == 0
    assert (bench / NAME).stat().st_mode & 0o7777 == 0o1777
    assert (bench / NAME / "her-run").is_dir(), "her results stay"
    assert printed(stage_as(ADA, bench, content)) == str(bench / NAME / "workload")
    assert list(bench.glob(".*")) == []


@as_root
@pytest.mark.parametrize("name", [NAME, f"{NAME}/workload"])
def test_root_follows_no_link_of_another_user(bench: Path, content: bytes, name: str) -> None:
    elsewhere = bench.parent / "elsewhere"
    elsewhere.mkdir()
    (bench / name).parent.mkdir(exist_ok=True)
    (bench / name).symlink_to(elsewhere)
    os.chown(bench / name, EVE, EVE, follow_symlinks=False)
    printed(unpack(bench.parent, content))
    assert list(elsewhere.iterdir()) == []
    assert set(staged(bench.parent)) == {"model.py", "envs/cpu/uv.lock"}
    assert not (bench / NAME).is_symlink()
    assert not (bench / NAME / "workload").is_symlink()


@as_root
@pytest.mark.parametrize("user", [0, ADA], ids=["root", "a user"])
def test_nothing_is_staged_where_a_link_in_the_folders_place_leads(
    bench: Path, content: bytes, user: int
) -> None:
    elsewhere = bench.parent / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    bench.rmdir()
    bench.symlink_to(elsewhere)
    os.chown(bench, EVE, EVE, follow_symlinks=False)
    for _ in ("a link", "a folder"):
        done = stage_as(user, bench, content)
        if user == 0:
            assert printed(done) == str(bench / NAME / "workload")
            there = bench.lstat()
            assert (there.st_uid, there.st_mode) == (0, stat.S_IFDIR | 0o1777), "others could exchange it"
        else:
            assert (done.returncode, done.stdout) == (1, b"")
            assert f"{bench} belongs to ".encode() in done.stderr
        assert list(elsewhere.iterdir()) == []
        assert elsewhere.stat().st_uid == 0
        bench.unlink() if bench.is_symlink() else shutil.rmtree(bench)
        bench.mkdir()
        bench.chmod(0o777)
        os.chown(bench, EVE, EVE)


@as_root
def test_who_may_use_sudo_stages_for_everybody(bench: Path, content: bytes) -> None:
    programs = bench.parent / "bin"
    programs.mkdir()
    asked = bench / "asked"
    # `-n` is the only option that is used here.
    (programs / "sudo").write_text(f'#!/bin/sh\necho "$2" >>{asked}\nshift\nexec "$@"\n')
    (programs / "sudo").chmod(0o755)
    printed(stage_as(ADA, bench, content, PATH=f"{programs}:{os.environ['PATH']}"))
    assert asked.read_text().split() == ["true", "/bin/sh"]
    asked.unlink()
    (programs / "sudo").write_text(f"#!/bin/sh\necho no >>{asked}\nexit 1\n")
    printed(stage_as(ADA, bench, content, PATH=f"{programs}:{os.environ['PATH']}"))
    assert asked.read_text() == "no\n"


# --- cancelling ------------------------------------------------------------------------------------------


def test_cancel_asks_the_tool(tmp_path: Path) -> None:
    assert json.loads(printed(shell(login_lines.cancel_line(tool(tmp_path / "it's"), "a/b"))))[0] == [
        "cancel", "--run=a/b",
    ]  # fmt: skip


@pytest.mark.parametrize("text", [None, "#!/bin/sh\nexit 3\n", "#!/bin/sh\nsleep 60\n"])
def test_cancel_never_fails_and_never_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.setattr(login_lines, "CANCEL_SECONDS", 1)
    path = tool(tmp_path, text) if text else str(tmp_path / "none")
    done = shell(login_lines.cancel_line(path, "a/b"))
    assert done.returncode == 0
    assert login_lines.NOT_CANCELLED in done.stderr.decode()
