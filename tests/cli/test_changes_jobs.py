"""The shell lines for jobs: no environment changes what they see and do, and no name is a job."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.changes import closing, jobs
from cli.changes.decision import ClusterControl, drain
from cli.changes.jobs import Job, parse
from cli.providers.local import running
from infra.errors import UserError
from node.slurm.environment import of_ours
from node.slurm.fields import LISTED, Kind
from operations.access import Command
from operations.local import machine_access
from operations.local.run_directory import RunDirectory
from tests.support.hostile import FORGED, HOSTILE, SEPARATORS
from tests.support.job_lines import kind, listing, record, told
from tests.support.sentences import raises

CONF = "/x y/slurm.conf"
FAKE = """#!/bin/sh
# Answers as Slurm does with one job, and records its environment.
{{ echo "$0 $*"; env | grep -vE '^(PWD|OLDPWD|SHLVL|_)='; echo; }} >>{folder}/asked
case "$(basename "$0") $*" in
    'scontrol ping') echo 'Slurmctld(primary) at head is UP' ;;
    'scontrol '*show*) echo 'PartitionName=cpu State=UP TotalCPUs=1' ;;
    squeue*--format=*) ;;
    squeue*) mark=${{SQUEUE_FORMAT#%i}}; mark=${{mark%%f\\%*}}
        printf "%s${{mark}}f" 1 ann cpu cpu-0 RUNNING '' "a name" 1:00 N/A N/A users
        echo "normal${{mark}}r" ;;
    sudo*) shift; export SCANCEL_STATE=PENDING SLURM_CLUSTERS=other; exec "$@" ;;
esac
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fakes of Slurm's programs and of a sudo that sets variables, in a shell that is hostile."""
    for name in ("scontrol", "squeue", "scancel", "sudo"):
        (tmp_path / name).write_text(FAKE.format(folder=tmp_path))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr("node.slurm.environment.PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    rc = tmp_path / "bashrc"
    rc.write_text("export SQUEUE_USERS=x\nsqueue() { :; }\nscancel() { :; }\necho '9|eve|cpu|x|welcome'\n")
    monkeypatch.setenv("BASH_ENV", str(rc))
    return tmp_path / "asked"


def remote(line: str, _seconds: float) -> str:
    """Runs a line as sshd does: by the user's shell, after its ~/.bashrc."""
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout


def seen(path: Path) -> list[tuple[str, dict[str, str]]]:
    """The commands of Slurm's programs, each with its environment."""
    records = [record.splitlines() for record in path.read_text().split("\n\n") if record]
    calls = [
        (first.removeprefix(f"{path.parent}/"), dict(line.split("=", 1) for line in rest))
        for first, *rest in records
    ]
    return [call for call in calls if not call[0].startswith("sudo")]


@pytest.mark.parametrize("where", ["over SSH", "over SSH as administrator", "here"])
def test_no_shell_changes_what_slurms_programs_are_told(
    asked: Path, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "here":
        monkeypatch.setattr(machine_access, "command", lambda _run, argv, **_options: Command(list(argv), {}))
        run = RunDirectory(tmp_path)
        control = ClusterControl(
            lambda line, seconds: running._shell(run, line, seconds), CONF, str(tmp_path)
        )
    else:
        control = ClusterControl(remote, CONF, str(tmp_path), sudo="administrator" in where)
    expected = [Job("1", "ann", "cpu", "cpu-0", "RUNNING", "", "a name", account="users", qos="normal")]
    assert control.jobs() == expected
    assert control.hold("DOWN") == (["cpu"], expected)
    assert control.release() == [], "the fake's partition stays as it is"
    line = f"{jobs.cancel_or_requeue_line(expected, expected, control.prefix)}; {jobs.wait_line(9, expected)}"
    assert parse(control.ask(line, 9)) == expected
    calls = seen(asked)
    assert {call.split()[0] for call, _ in calls} == {"scontrol", "squeue", "scancel"}
    for call, variables in calls:
        mark = variables.pop("SQUEUE_FORMAT", "")
        assert variables == of_ours(CONF), call
        fields = r"\2f".join(["", "%P", "%N", "%T", "%n", "%j", "%M", "%S", "%e", "%a", "%q"])
        drawn = re.fullmatch(rf"%i(([0-9a-f]{{32}})f%u{fields}\2r)?", mark or "%i")
        assert drawn, "ours, and not the shell's"
        assert not mark or drawn[2] not in call


TEXTS = st.one_of(
    st.sampled_from(FORGED),
    st.text(
        st.one_of(st.characters(max_codepoint=0x9F, exclude_characters="\0"), st.sampled_from(SEPARATORS)),
        max_size=99,
    ),
    st.lists(st.sampled_from([*FORGED, *SEPARATORS, "f", "r", f"mark={'0' * 32}\n"]), max_size=9).map(
        "".join
    ),
)


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_no_name_is_a_job_or_another_jobs_name(names: list[str]) -> None:
    given_names = {str(number): name for number, name in enumerate(names, 11)}
    text = "held=cpu\n" + listing(
        *(record(n, "ann", "cpu", f"cpu-{n}", "RUNNING", "", name) for n, name in given_names.items())
    )
    found = parse(text)
    assert [job.id for job in found] == list(given_names)
    assert {(job.user, job.state, job.partition) for job in found} == {("ann", "RUNNING", "cpu")}
    assert closing.held(text) == ["cpu"]
    for job, name in zip(found, names, strict=True):
        assert job.nodes == f"cpu-{job.id}"
        assert all(c.isprintable() or c == "\t" for c in job.line())
        assert len(job.name) <= 4 * jobs.LONGEST_NAME + 50 or len(name) <= jobs.LONGEST_NAME
        if name.isprintable() and len(name) <= jobs.LONGEST_NAME:
            assert job.name == name


@pytest.mark.parametrize("field", [key for key, kind in LISTED.items() if kind is Kind.TEXT])
@given(text=TEXTS)
def test_no_text_is_a_job_or_another_field(field: str, text: str) -> None:
    place = list(LISTED).index(field)
    plain = ["12", "ann", "cpu", "cpu-1", "RUNNING", "cpu-2", "a name"]
    changed = [text if number == place else value for number, value in enumerate(plain)]
    one, other = parse(listing(record(*changed), record("13", *plain[1:])))
    assert (other.id, other.state, other.nodes, other.partition) == ("13", "RUNNING", "cpu-1", "cpu")
    names = ("id", "user", "partition", "nodes", "state", "required", "name")
    for number, name in enumerate(names):
        assert number == place or getattr(one, name) == plain[number]
    assert all(c.isprintable() or c == "\t" for job in (one, other) for c in job.line())


@given(TEXTS)
def test_a_text_alone_is_no_listing(text: str) -> None:
    with contextlib.suppress(UserError):
        assert parse(text) == []
    assert isinstance(closing.opened(text), list)


def test_what_a_shell_prints_around_the_listing_is_no_job() -> None:
    plain = record("12", "ann", "cpu", "cpu-1", "RUNNING", "(null)", "")
    expected = [Job("12", "ann", "cpu", "cpu-1", "RUNNING", "", "", account="users", qos="normal")]
    assert parse(f"welcome\n{listing(plain)}bye\n") == expected
    assert expected[0].line() == "job 12 (ann, RUNNING on cpu-1)"
    assert parse("welcome\n" + listing()) == []
    odd = parse(listing(record("12", "DOMAIN|ann@x y\n", "cpu", "cpu-1", "RUNNING", "", "")))
    assert [(job.user, job.partition) for job in odd] == [("DOMAIN|ann@x y\\n", "cpu")], "a directory's user"


PLAIN = record("12", "ann", "cpu", "cpu-1", "RUNNING", "", "x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "welcome\n",
        "mark=\n",
        listing(PLAIN, PLAIN),
        listing(PLAIN, record("12", "eve", "cpu", "", "PENDING", "", "y")),
        listing(PLAIN, record("x", "ann", "cpu", "cpu-1", "RUNNING", "", "x")),
        listing(PLAIN, record("13", "ann", "cpu", "cpu-1", "RUNNING\n", "", "x")),
        listing(PLAIN, record("13", "ann", "cpu", "cpu-1", "RUNNING", "x")),
    ],
)
def test_whoever_ends_jobs_knows_for_certain_which_there_are(text: str) -> None:
    with raises("jobs.unsure"):
        parse(text)


def test_a_listing_that_is_not_certain_leaves_no_partition_closed() -> None:
    lines: list[str] = []

    def run(line: str, _seconds: float) -> str:
        lines.append(line)
        return "held=cpu\n" + listing(PLAIN, PLAIN)

    control = ClusterControl(run, CONF)
    with raises("jobs.unsure"):
        control.hold("DOWN")
    assert f"token={control.holder.token}" in lines[1], "what its mark names is opened"
    assert "scontrol update PartitionName=$name State=${rest#*:}" in lines[1]


@pytest.mark.parametrize("first", ["look", "hold"])
def test_down_ends_no_cluster_whose_jobs_are_not_certain(first: str) -> None:
    """One that does not answer is ended all the same, because it must be possible to end a dead one."""
    lines: list[str] = []

    def run(line: str, _seconds: float) -> str:
        lines.append(kind(line))
        fine = first == "hold" and lines[-1] == "look"
        return listing(PLAIN) if fine else "held=cpu\n" + listing(PLAIN, PLAIN)

    with raises("jobs.unsure"):
        drain(ClusterControl(run, CONF), "test", lambda _: None, lambda _: None)
    assert lines == (["look"] if first == "look" else ["look", "hold DOWN", "release"])


def test_a_pending_arrays_limit_is_no_part_of_its_id_in_commands() -> None:
    (job,) = parse(told("3_[1,4,7-9%2]|ann|cpu||PENDING||\n"))
    assert (job.id, job.target) == ("3_[1,4,7-9%2]", "3_[1,4,7-9]")
    assert jobs.cancel_line([job]) == "scancel --quiet '3_[1,4,7-9]'"
    (job,) = parse(told("3_[0-9:3,20-24:2%2]|ann|cpu||PENDING||\n"))
    assert job.target == "3_[0,3,6,9,20,22,24]"


def test_nodes_that_are_spelled_in_another_way_stop_nothing() -> None:
    (job,) = parse(told("3|ann|cpu|cpu-[|PENDING|a b[|\n"))
    assert not job.touches(frozenset({"cpu-1"}))
    assert not job.requires(frozenset({"cpu-1"}))
