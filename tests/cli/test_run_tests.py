"""`./cluster test`: its table of suites, its commands, and that every failure is reported."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.commands import run_tests
from infra.errors import UserError
from localcloud import images
from node.slurm.environment import defaults
from operations.local import environment_builds, system_packages
from tests.support import accounts, caller, left_clusters
from tests.support.checkout import ROOT, until
from tests.support.hostile import HOSTILE
from tests.support.wide import wide

HERE = Path(sys.executable)
TRAINER = Path("/trainer")
PASSES = [sys.executable, "-c", "print('it ran')"]
FAILS = [sys.executable, "-c", "print('it ran'); raise SystemExit(3)"]
STEPS = 7
"""Three gates, three suites, and the coverage."""


@pytest.fixture(autouse=True)
def no_hypothesis(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small suites here have no properties, and each of their processes would import Hypothesis."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")


class Commands:
    """Replaces every command by a small program, which fails if the command has one of the failing words."""

    def __init__(self) -> None:
        self.run: list[list[str]] = []
        self.shown: list[list[str]] = []
        """The commands whose output is not kept for later."""
        self.failing: set[str] = set()
        self._start = run_tests.Jobs._start

    def __call__(self, jobs: run_tests.Jobs, command: Sequence[str], output: Path | None = None) -> Any:
        words = [str(part) for part in command]
        self.run.append(words)
        if output is None:
            self.shown.append(words)
        if "slipcover" in words and "pytest" in words:
            Path(words[words.index("--out") + 1]).write_text("{}")
        fails = bool(self.failing & set(words))
        if fails and "pytest" in words:
            cache = next(Path(word.partition("=")[2]) for word in words if word.startswith("cache_dir="))
            (cache / "v" / "cache").mkdir(parents=True)
            (cache / "v" / "cache" / "lastfailed").write_text('{"tests/x/test_x.py::test_y[1]": true}')
        return self._start(jobs, FAILS if fails else PASSES, output)

    def of(self, word: str) -> list[str]:
        """The only command with this word."""
        (found,) = [words for words in self.run if word in words]
        return found


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands()

    def start(jobs: run_tests.Jobs, command: Sequence[str], output: Path | None = None) -> Any:
        return made(jobs, command, output)

    monkeypatch.setattr(run_tests.Jobs, "_start", start)
    monkeypatch.setattr(system_packages, "ensure", lambda _say, **_options: None)
    monkeypatch.setattr(system_packages, "ensure_for", lambda _purpose, _say: None)
    monkeypatch.setattr(system_packages, "add_pmix", lambda _say: None)
    monkeypatch.setattr(images, "ensure", lambda *_arguments: None)
    monkeypatch.setattr(run_tests, "_free_memory", lambda: 64 << 30)
    monkeypatch.setattr(environment_builds, "build_environment", lambda *_arguments, **_more: TRAINER)
    return made


def test_the_suites_have_every_test_once() -> None:
    suites = run_tests.suites(ROOT, TRAINER, cores=2)
    paths = [ROOT / folder for suite in suites for folder in suite.folders]
    tests = [
        path for folder in paths for path in ([folder] if folder.is_file() else folder.rglob("test_*.py"))
    ]
    assert sorted(tests) == sorted((ROOT / "tests").rglob("test_*.py"))
    assert len(tests) > 100
    assert {suite.name: suite.python for suite in suites} == {
        "tests": HERE,
        "tests of the workload": TRAINER / "bin" / "python",
        "tests of real clusters": HERE,
    }


@pytest.mark.parametrize("everything", [False, True])
def test_a_suites_command(tmp_path: Path, everything: bool) -> None:
    suite = run_tests.Suite("some", ("tests/a", "tests/b"), TRAINER, workers=3, options=("--x",))
    words = suite.command(tmp_path, everything=everything)
    measured = "slipcover --dont-wrap-pytest --json --out"
    assert words[:8] == [str(TRAINER), "-m", *measured.split(), f"{tmp_path}/some.json", "-m"]
    assert words[8:12] == ["pytest", "tests/a", "tests/b", "--x"]
    assert ("not wide" in words) == (not everything)
    assert "--durations=15" in words
    assert words[-2:] == ["--numprocesses", "3"]
    plain = run_tests.Suite("some", ("tests/a",)).command(tmp_path, everything=True)
    assert (plain[0], "--numprocesses" in plain) == (str(HERE), False)
    unmeasured = run_tests.Suite("some", ("tests/a",), measured=False).command(tmp_path, everything=True)
    assert unmeasured[1:4] == ["-m", "pytest", "tests/a"]


def test_each_step_runs_once_and_the_first_suite_is_shown_at_once(
    commands: Commands, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_tests.run(ROOT, []) == 0
    assert len(commands.run) == STEPS
    kept = [words for words in commands.run if words not in commands.shown]
    assert sorted(kept) == sorted(
        [commands.of("mypy"), commands.of("tests/workload"), commands.of("tests/cluster")]
    )
    merge = commands.run[-1]
    measured = [Path(word).name for word in merge[merge.index("--merge") + 1 :]]
    assert measured == ["tests.json", "tests of the workload.json"]
    assert "slipcover" not in commands.of("tests/cluster")
    shown = capfd.readouterr().out
    names = (
        "ruff check",
        "tests",
        "tests of the workload",
        "tests of real clusters",
        "mypy --strict",
    )
    places = [shown.index(f"\n== {name}\nit ran\n") for name in names]
    assert places == sorted(places)
    assert re.search(r"\n== all passed in \d+ s\n$", shown)


def test_a_machine_with_little_memory_runs_one_after_another(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "_free_memory", lambda: 4 << 30)
    assert run_tests.run(ROOT, []) == 0
    assert commands.shown == commands.run
    assert len(commands.run) == STEPS


def test_the_free_memory_is_this_machines() -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < run_tests._free_memory() <= whole


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("format", "ruff format --check"),
        ("mypy", "mypy --strict"),
        ("tests/infra", "tests"),
        ("tests/engine", "tests"),
        ("tests/cluster", "tests of real clusters"),
        ("tests/workload", "tests of the workload"),
    ],
)
def test_a_failure_is_named_and_does_not_hide_the_rest(
    commands: Commands, capfd: pytest.CaptureFixture[str], word: str, named: str
) -> None:
    commands.failing = {word}
    assert run_tests.run(ROOT, []) == 1
    assert len(commands.run) == STEPS
    _, _, end = capfd.readouterr().out.rpartition("\n== ")
    tests = "tests/x/test_x.py::test_y[1]\n" if named.startswith("tests") else ""
    assert re.fullmatch(rf"failed in \d+ s: {re.escape(named)}\n{re.escape(tests)}", end)


def test_arguments_are_pytests_and_nothing_else_runs(commands: Commands, tmp_path: Path) -> None:
    assert run_tests.run(ROOT, ["tests/node", "-k", "x"]) == 0
    assert commands.run == [[sys.executable, "-m", "pytest", "tests/node", "-k", "x"]]
    commands.failing = {"tests/none"}
    assert run_tests.run(ROOT, ["tests/none", "-o", f"cache_dir={tmp_path}"]) == 3


def test_a_real_pytest_notes_what_failed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): pass\n\ndef test_b(): assert False\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = wide: x\n")
    suite = run_tests.Suite("some", ("test_it.py",), workers=2)
    jobs = run_tests.Jobs(tmp_path)
    assert suite.failed_tests(tmp_path) == []
    assert jobs.run("some", suite.command(tmp_path, everything=False)) == 1
    assert (jobs.failed, suite.failed_tests(tmp_path)) == (["some"], ["test_it.py::test_b"])


def test_nothing_of_the_callers_leads_the_tests_elsewhere() -> None:
    env = dict.fromkeys(
        (
            *HOSTILE,
            "SLURM_STACKS_STACK",
            "PULUMI_CONFIG_PASSPHRASE",
            "PYTHONPATH",
            "NO_COLOR",
            *caller.OPTIONS,
        ),
        "mine",
    )
    caller.forget(env)
    ours = {name for name in env if name.startswith(("SLURM", "PULUMI_CONFIG"))}
    assert ours == {"SLURM_STACKS_PROJECT", *caller.OPTIONS}
    assert defaults(env) == []
    assert (env["PYTHONPATH"], env["SLURM_STACKS_PROJECT"], env["TERM"]) == (str(ROOT), str(ROOT), "xterm")
    assert "NO_COLOR" not in env


def test_the_options_of_tests_are_those_that_tests_read() -> None:
    readers = [path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.name != "caller.py"]
    for name in caller.OPTIONS:
        assert any(f'"{name}"' in text for text in readers), name


@pytest.mark.parametrize("options", [["-n2"], pytest.param([], marks=pytest.mark.wide)])
def test_the_branches_of_all_suites_are_shown_together(tmp_path: Path, options: list[str]) -> None:
    """Of the function `whole`, each suite runs one branch; of `half`, both run the same."""
    functions = "".join(
        f"def {name}(x):\n    if x:\n        return 1\n    return 2\n" for name in ("whole", "half")
    )
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "functions.py").write_text(functions)
    (tmp_path / "measured" / "unused.py").write_text("x = 1\n")
    (tmp_path / "pyproject.toml").write_text('[tool.slipcover]\nbranch = true\nsource = ["measured"]\n')
    # Without these variables the pytest inside would act as a worker of our own run.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    env["PYTHONPATH"] = str(tmp_path)
    files = []
    for value in (True, False):
        test = tmp_path / f"test_{value}.py"
        test.write_text(
            "from measured.functions import half, whole\n\n\n"
            f"def test_both():\n    assert whole({value}) == {1 if value else 2} and half(True) == 1\n"
        )
        suite = run_tests.Suite(str(value), (test.name, *options))
        files.append(suite.coverage(tmp_path))
        subprocess.run(suite.command(tmp_path, everything=True), cwd=tmp_path, env=env, check=True)
    merge = run_tests.merged(files, tmp_path / "all.json")
    shown = subprocess.run(merge, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    # The file, its lines and those not run, its branches and those not taken, both shares, and the line.
    found = [line.split() for line in shown.splitlines() if line.startswith("measured/")]
    assert found[0] == ["measured/functions.py", "8", "1", "4", "1", "75", "83", "8"]
    assert found[1][:3] == ["measured/unused.py", "1", "1"]


def test_without_slurm_the_rest_still_runs(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_say: Any, *, accounting: bool = False) -> None:
        raise UserError(
            f"only root can install {'slurmdbd' if accounting else 'slurmctld'}", code="test.cause"
        )

    monkeypatch.setattr(system_packages, "ensure", refuse)
    assert run_tests.run(ROOT, []) == 0
    shown = capsys.readouterr().out
    assert "tests of a real cluster are skipped: only root can install slurmctld" in shown
    assert "tests of accounting are skipped: only root can install slurmdbd" in shown
    assert len(commands.run) == STEPS


INTERRUPTED = """
import sys
from pathlib import Path
from cli.commands import run_tests
child = '''
import pathlib, sys, time
try:
    pathlib.Path(sys.argv[1]).touch()
    time.sleep(300)
except KeyboardInterrupt:
    time.sleep(0.5)
    print(sys.argv[1], "has cleaned up", flush=True)
'''
steps = [(name, [sys.executable, "-c", child, name]) for name in ("one", "two", "three")]
run_tests.Jobs(Path()).run_side_by_side(steps, Path())
"""


def test_an_interrupt_reaches_every_suite_and_is_waited_for(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as suite:
        until(lambda: {"one", "two", "three"} <= {p.name for p in tmp_path.iterdir()}, 60, "all suites")
        suite.send_signal(signal.SIGINT)
        shown, _ = suite.communicate(timeout=120)
    assert shown.count(f"== {run_tests.INTERRUPTED}\n") == 1
    assert all(f"{name} has cleaned up" in shown for name in ("one", "two", "three"))
    assert suite.returncode == -signal.SIGINT


# --- the suites' own account -----------------------------------------------------------------------------

SUITE = """
import pytest

def test_a():
    pass

@pytest.mark.wide
@pytest.mark.parametrize("x", [1, 2])
def test_b(x):
    pass
"""


@pytest.mark.parametrize("options", [["-n1"], *wide([])])
def test_what_is_left_out_is_said_with_how_to_run_it(tmp_path: Path, options: list[str]) -> None:
    for name in ("one", "two"):
        (tmp_path / "tests" / name).mkdir(parents=True)
        (tmp_path / "tests" / name / f"test_{name}.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = wide: x\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.accounts", "-m", "not wide", "tests", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d s  tests/one: 1 tests ran\n", done.stdout)
    left_out = done.stdout.partition("4 wide tests, each of a promise that others prove; ")[2]
    assert left_out.startswith("`./cluster test --all` runs them too:\n")
    assert re.findall(r"^ +(\d+)  (\S+)$", left_out, re.MULTILINE) == [
        ("2", "tests/one/test_one.py"),
        ("2", "tests/two/test_two.py"),
    ]


DEALT = """
import os
import pytest

@pytest.mark.parametrize("n", range(12))
def test_it(n):
    with open(LOG, "a") as log:
        log.write(f"{__name__} {n} {os.getpid()}\\n")
"""


def test_workers_that_are_asked_for_keep_a_files_tests_together_and_in_order(tmp_path: Path) -> None:
    """Whoever writes only `-n 2` gets that, too: pytest-xdist would deal the tests out one by one."""
    log = tmp_path / "log"
    body = DEALT.replace("LOG", repr(str(log)))
    for name in ("test_a.py", "test_b.py", "test_c.py"):
        (tmp_path / name).write_text(body)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.accounts", "-n", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    ran = [line.split() for line in log.read_text().splitlines()]
    for file in ("test_a", "test_b", "test_c"):
        numbers, workers = zip(*[(int(n), worker) for name, n, worker in ran if name == file], strict=True)
        assert numbers == tuple(range(12))
        assert len(set(workers)) == 1


def test_tests_of_real_programs_begin_first() -> None:
    names = [
        "tests/infra/test_a.py::a",
        "tests/localcloud/test_l.py::l",
        "tests/cluster/test_c.py::c",
        "tests/docs/test_d.py::d",
    ]
    assert [name[-1] for name in sorted(names, key=accounts.rank)] == ["c", "l", "a", "d"]
    assert [path for path in accounts.FIRST if not (ROOT / path).exists()] == [], "these were renamed"


CRASH = """
import os
from pathlib import Path
from infra.program import folders
from infra.program.stack import Stack
from tests.support import left_clusters

def test_it():
    os.environ["XDG_STATE_HOME"] = str(Path("state").resolve())
    stack = Stack(Path("a checkout").resolve(), "test")
    stack.project.mkdir()
    Path("run").write_text(str(folders.make_run_dir(stack)))
    left_clusters.register(stack.project, stack.name)
    os._exit(1)
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_the_cluster_of_a_worker_that_is_gone_ends_with_the_run(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_it.py").write_text(CRASH if workers == "1" else CRASH.replace("os._exit(1)", "pass"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    plugins = ["-p", "tests.support.left_clusters", "-p", "no:cacheprovider"]
    hidden = {name: value for name, value in os.environ.items() if name != left_clusters.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-n", workers, "--max-worker-restart=0"],
        cwd=tmp_path,
        env={**hidden, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"a cluster of a test was still up and is ended now: {tmp_path / 'a checkout'}" in done.stdout
    assert not Path((tmp_path / "run").read_text()).exists()
    assert done.returncode == int(workers)
