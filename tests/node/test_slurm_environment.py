"""What programs of Slurm's inherit. Slurm's own manual pages say which variables they read."""

from __future__ import annotations

import gzip
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from node.bootstrap import command
from node.slurm import environment
from tests.support.hostile import HOSTILE, IDENTITY

PAGES = [page for name in environment.PROGRAMS for page in Path("/usr/share/man/man1").glob(f"{name}.1*")]
# Variables that the pages mention, and that are no program's of Slurm's own.
FOREIGN = re.compile(
    r"PATH|HOME|USER|SHELL|TMPDIR|LANG|TZ|COLUMNS|LINES|PAGER|DISPLAY|TERM|BASH\w*|LD_LIBRARY_PATH|NOTE"
)


def documented(page: Path) -> set[str]:
    """The variables in a manual page's sections about the environment."""
    content = page.read_bytes()
    text = (gzip.decompress(content) if page.suffix == ".gz" else content).decode(errors="replace")
    sections = re.split(r"^\.SH ", text, flags=re.MULTILINE)
    about = [section for section in sections if "ENVIRONMENT VARIABLES" in section.partition("\n")[0]]
    # An item of the section: `.IP` or `.TP`, then the name in bold type.
    return {
        name
        for section in about
        for name in re.findall(r"^\\fB([A-Z][A-Z0-9_]{3,})\\fR", section, re.MULTILINE)
    }


@pytest.mark.skipif(not PAGES, reason="Slurm's manual pages are not installed")
def test_every_variable_of_the_manual_pages_is_known() -> None:
    found = {name for page in PAGES for name in documented(page)}
    assert len(found) > 200, "the pages are read"
    assert {"SQUEUE_USERS", "SBATCH_PARTITION", "SINFO_FORMAT", "SCANCEL_STATE", "SLURM_CLUSTERS"} <= found
    left = set(environment.without_slurm(dict.fromkeys(found, "x")))
    assert {name for name in left if not FOREIGN.fullmatch(name)} == set()
    # Those that Slurm sets in a job go before a command that a user types.
    assert {
        name for name in environment.without_job(dict.fromkeys(found, "x")) if name.startswith("SLURM")
    } <= {"SLURM_TIME_FORMAT"}


def test_our_own_programs_get_nothing_of_a_shell() -> None:
    assert environment.of_ours("/x y/slurm.conf") == {
        "PATH": environment.PATH,
        "SLURM_CONF": "/x y/slurm.conf",
        "SLURM_TIME_FORMAT": "%s",
        "SLURM_BITSTR_LEN": "0",
        "LC_ALL": "C.UTF-8",
    }


def env_of(argv: list[str], variables: dict[str, str]) -> dict[str, str]:
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, check=True)
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return {name: value for name, value in seen.items() if name not in ("PWD", "SHLVL", "_", "OLDPWD")}


@pytest.mark.parametrize("shell", [["sh", "-c"], ["bash", "-c"]])
def test_a_line_has_the_same_environment_in_any_session(tmp_path: Path, shell: list[str]) -> None:
    """Over SSH bash reads ~/.bashrc before the line, as it reads $BASH_ENV here."""
    rc = tmp_path / "bashrc"
    rc.write_text("export SQUEUE_USERS=x\nenv() { echo SLURM_CONF=mine; }\nalias env=false\necho welcome\n")
    hostile = {**HOSTILE, "PATH": "/usr/bin:/bin", "BASH_ENV": str(rc)}
    line = environment.shell_line("env; x='a  b'; [ \"$x\" = 'a  b' ]", "/x y/slurm.conf")
    assert env_of([*shell, line], hostile) == environment.of_ours("/x y/slurm.conf")


def test_the_words_before_a_command_take_everything_else_away() -> None:
    """As behind sudo, which adds the variables of /etc/environment."""
    text = f"{shlex.join(environment.words('/x'))} env"
    assert env_of(["sh", "-c", text], {**HOSTILE, "PATH": "/usr/bin:/bin"}) == environment.of_ours("/x")


def test_a_command_of_a_users_keeps_the_users_own_defaults_and_loses_a_jobs_identity() -> None:
    job = {
        "CUDA_VISIBLE_DEVICES": "3",
        "ENVIRONMENT": "BATCH",
        "SLURM_STACKS_RUN": "7.0",
        "SBATCH_MEM_BIND_LIST": "1",
    }
    mine = {"PATH": "/bin", "SQUEUE_FORMAT": "%i", "SBATCH_ACCOUNT": "me", "OMPI_MCA_btl": "tcp"}
    assert environment.without_job({**mine, **job, "SLURM_JOB_ID": "7"}) == mine
    assert environment.without_job({**mine, "CUDA_VISIBLE_DEVICES": "3"}) == {
        **mine,
        "CUDA_VISIBLE_DEVICES": "3",
    }
    left = environment.without_job(HOSTILE)
    assert not left.keys() & IDENTITY
    assert {"SQUEUE_FORMAT", "SLURM_TIME_FORMAT", "LC_ALL", "TZ"} <= left.keys()


def test_a_job_of_ours_gets_a_fixed_environment() -> None:
    given = environment.of_submitter("/x", home="/h", user="u", SLURM_STACKS_SUBMITTED="1.5")
    names = {"PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF", "SLURM_STACKS_SUBMITTED"}
    assert set(given) == names


def test_a_machines_boot_passes_nothing_of_slurms_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_STACKS_MACHINE", "m-1")
    said = command.run("env", env={"SLURM_CONF": "/mine"})
    seen = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    assert seen["SLURM_CONF"] == "/mine"
    assert seen["SLURM_STACKS_MACHINE"] == "m-1", "the mark of a local machine's processes"
    assert environment.defaults({name: value for name, value in seen.items() if name != "SLURM_CONF"}) == []
