"""The training environment: built once for each lock file, by one builder at a time, and completely."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from infra import os_errors
from infra.environments import digest, lock_digest
from infra.errors import EXIT_REFUSED, UserError
from localcloud.machines import base_python
from node.bootstrap.vm.training import COMPLETE
from operations.local import environment_builds
from operations.local.environment_builds import build_environment, build_own_environment
from tests.support import sentences
from tests.support.checkout import until

# In place of uv: notes how it was called, and makes an environment.
UV = """#!/bin/sh
options="$UV_COMPILE_BYTECODE|$UV_PYTHON_DOWNLOADS|$UV_PYTHON|$VIRTUAL_ENV"
echo "$UV_PROJECT_ENVIRONMENT|$options|$*" >> "$0.log"
mkdir -p "$UV_PROJECT_ENVIRONMENT/bin"
while [ -e "$0.hold" ]; do sleep 0.05; done
touch "$UV_PROJECT_ENVIRONMENT/bin/python"
"""


class Uv:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "uv"
        self.write(UV)

    def write(self, script: str) -> None:
        self.path.write_text(script)
        self.path.chmod(0o755)

    @property
    def hold(self) -> Path:
        """While this file exists, an installation runs."""
        return self.path.with_name("uv.hold")

    def calls(self) -> list[str]:
        log = self.path.with_name("uv.log")
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def uv(tmp_path: Path) -> Uv:
    return Uv(tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for kind in ("cpu", "gpu"):
        folder = tmp_path / "a project" / "workload" / "envs" / kind
        folder.mkdir(parents=True)
        (folder / "uv.lock").write_text(f"the lock of {kind}\n")
    return tmp_path / "a project"


@pytest.fixture
def make(project: Path, uv: Uv, tmp_path: Path) -> Callable[..., Path]:
    def go(kind: str = "cpu", *groups: str) -> Path:
        return build_environment(project, kind, tmp_path / "envs", uv.path, groups)

    return go


def test_an_environment_is_built_once_for_its_lock(
    make: Callable[..., Path], project: Path, uv: Uv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/mine")
    path = make()
    assert path == tmp_path / "envs" / lock_digest(project, "cpu")
    assert (path / "bin" / "python").exists()
    folder = project / "workload" / "envs" / "cpu"
    arguments = f"sync --quiet --frozen --no-default-groups --project {folder}"
    assert uv.calls() == [f"{path}|1|never|{base_python()}||{arguments}"], "the interpreter that machines see"
    assert make() == path
    assert len(uv.calls()) == 1
    assert make("gpu") != path
    (folder / "uv.lock").write_text("another lock\n")
    assert make() != path
    assert len(uv.calls()) == 3


def test_the_tests_own_packages_come_on_top(make: Callable[..., Path], uv: Uv) -> None:
    path = make("cpu", "test")
    assert uv.calls()[-1].endswith("--group=test")
    make()
    make("cpu", "test")
    assert len(uv.calls()) == 1, "who wants less has it already"
    make("cpu", "extra")
    assert uv.calls()[-1].endswith("--group=extra --group=test"), "what was there is not taken away"
    assert set((path / COMPLETE).read_text().split()) == {"extra", "test"}


def test_a_build_that_failed_is_no_environment(make: Callable[..., Path], uv: Uv, tmp_path: Path) -> None:
    uv.write("#!/bin/sh\nmkdir -p $UV_PROJECT_ENVIRONMENT/bin\nexit 2\n")
    with sentences.raises("training.not-built", "envs/cpu/uv.lock"):
        make()
    uv.write(UV)
    assert (make() / "bin" / "python").exists()
    assert len(uv.calls()) == 1


def test_a_users_requirements_may_be_the_mistake(uv: Uv, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("six==\n")
    uv.write("#!/bin/sh\nexit 2\n")
    with sentences.raises("training.not-built", tmp_path / "own.txt") as caught:
        build_own_environment(tmp_path, "own.txt", tmp_path / "envs", uv.path)
    uv.write(f"#!/bin/sh\nexit {environment_builds.UNSOLVABLE}\n")
    with sentences.raises("training.packages") as caught:
        build_own_environment(tmp_path, "own.txt", tmp_path / "envs", uv.path)
    assert "connection" not in str(caught.value), "the index has answered"


def test_without_room_nothing_is_begun_and_with_room_it_goes_on(
    make: Callable[..., Path], uv: Uv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os_errors, "free_mib", lambda _path: 300)
    with pytest.raises(UserError) as caught:
        make()
    text = str(caught.value)
    assert f"needs 2000 MiB in {tmp_path}/envs, and 300 MiB are free there" in text
    assert "set XDG_CACHE_HOME" in text
    assert uv.calls() == []
    monkeypatch.setattr(os_errors, "free_mib", lambda _path: 2000)
    assert (make() / "bin" / "python").exists()


def test_what_an_interrupted_build_has_installed_needs_no_more_room(
    make: Callable[..., Path], uv: Uv, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv.write(
        '#!/bin/sh\ncd "$UV_PROJECT_ENVIRONMENT" || mkdir "$UV_PROJECT_ENVIRONMENT"\n'
        'truncate -s 1900M "$UV_PROJECT_ENVIRONMENT/part"; exit 2\n'
    )
    with sentences.raises("training.not-built"):
        make()
    uv.write(UV)
    monkeypatch.setattr(os_errors, "free_mib", lambda _path: 150)
    assert make()


def test_a_folder_that_cannot_hold_it_is_refused(
    make: Callable[..., Path], uv: Uv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os_errors, "noexec", lambda _path: True)
    with sentences.raises("training.noexec") as caught:
        make()
    assert caught.value.exit_code == EXIT_REFUSED
    monkeypatch.undo()
    (tmp_path / "envs").rename(tmp_path / "other")
    (tmp_path / "envs").touch()
    with sentences.raises("system.unusable") as caught:
        make()
    assert caught.value.exit_code == EXIT_REFUSED
    assert uv.calls() == []


def test_an_environment_whose_interpreter_was_upgraded_is_built_again(
    make: Callable[..., Path], uv: Uv
) -> None:
    python = make() / "bin" / "python"
    python.unlink()
    python.symlink_to("/usr/bin/python3.that-was")
    uv.write(UV.replace('touch "', 'rm "$UV_PROJECT_ENVIRONMENT/bin/python"; touch "'))
    make()
    assert python.exists()
    assert len(uv.calls()) == 2


def test_builders_wait_for_each_other(make: Callable[..., Path], uv: Uv) -> None:
    made: list[Path] = []
    uv.hold.touch()
    threads = [threading.Thread(target=lambda: made.append(make())) for _ in range(4)]
    # What pytest captures may lose a thread's word while it is read.
    with contextlib.redirect_stderr(io.StringIO()) as said:
        for thread in threads:
            thread.start()
        try:
            until(
                lambda: said.getvalue().count("waiting for another build") == 3, 120, "those that come second"
            )
        finally:
            uv.hold.unlink()
            for thread in threads:
                thread.join()
    assert len(set(made)) == 1
    assert len(made) == 4
    assert len(uv.calls()) == 1
    assert said.getvalue().count("waiting for another build") == 3


def test_a_long_build_says_that_it_goes_on(
    make: Callable[..., Path], uv: Uv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_builds, "HEARTBEAT_SECONDS", 0.03)
    threads = threading.active_count()
    uv.hold.touch()
    builder = threading.Thread(target=make)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        builder.start()
        try:
            until(lambda: said.getvalue().count("still installing into") >= 2, 120, "two words")
        finally:
            uv.hold.unlink()
            builder.join()
        until(lambda: threading.active_count() <= threads, 60, "nobody who would go on talking")


def test_the_projects_own_environments_have_their_locks() -> None:
    from tests.support.checkout import ROOT

    assert len({lock_digest(ROOT, kind) for kind in ("cpu", "gpu")}) == 2
    assert os.access(ROOT / "workload" / "envs" / "cpu" / "uv.lock", os.R_OK)


def test_a_users_requirements_get_an_environment_of_their_own(project: Path, uv: Uv, tmp_path: Path) -> None:
    file = project / "code" / "packages.txt"
    file.parent.mkdir()
    file.write_text("torch==2.9.1\n")
    path = build_own_environment(project, "code/packages.txt", tmp_path / "envs", uv.path)
    assert path == tmp_path / "envs" / digest("cpu", "code/packages.txt", project)
    assert (path / COMPLETE).exists()
    made, install = [call.rpartition("|")[2] for call in uv.calls()]
    assert made == f"venv --quiet --allow-existing {path}"
    *words, source = install.split()
    assert words == f"pip install --quiet --python {path}/bin/python --requirement".split()
    assert source.endswith("/packages.txt")
    assert source != str(file), "what was checked is installed, whatever the file is by then"
    assert build_own_environment(project, "code/packages.txt", tmp_path / "envs", uv.path) == path
    assert len(uv.calls()) == 2
    file.write_text("-r more.txt\n")
    with sentences.raises("requirements.unusable"):
        build_own_environment(project, "code/packages.txt", tmp_path / "envs", uv.path)
