"""Texts that users control are no records, no fields and no paths, whatever they hold.

tests/node/test_control_cluster.py submits such texts to a real Slurm and reads them back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.logs import find, job_output
from node.logs.find import Cluster
from node.slurm.answers import parse_jobs, parse_nodes, parse_texts
from node.slurm.fields import JOB, JOB_TEXTS, OUTPUT, Kind
from node.slurm.reservations import Reservation
from node.slurm.states import NodeState
from tests.support import doubles
from tests.support.hostile import FORGED, SEPARATORS

DATA = Path(__file__).parent / "data"
REAL_JOBS = (DATA / "jobs-22.05.txt").read_bytes()
NODES = [line for line in (DATA / "nodes-22.05.txt").read_text().splitlines() if line.startswith("NodeName=")]
MARK = "m0123456789abcdef0123456789abcdef"
FIELDS = {**JOB, **JOB_TEXTS}
TEXTS = st.one_of(
    st.sampled_from(FORGED),
    st.text(
        st.one_of(st.characters(max_codepoint=0x9F, exclude_characters="\0"), st.sampled_from(SEPARATORS)),
        max_size=99,
    ),
    st.lists(st.sampled_from([*FORGED, *SEPARATORS, "m", "mf", "mr"]), max_size=9).map("".join),
    # What `errors="replace"` makes of bytes that are no UTF-8.
    st.binary(max_size=60).map(lambda data: data.replace(b"\0", b"").decode(errors="replace")),
)


@given(TEXTS)
def test_what_is_no_jobs_record_neither_forges_nor_hides_a_job(text: str) -> None:
    real = parse_jobs(REAL_JOBS, MARK, JOB_TEXTS)
    assert parse_jobs(REAL_JOBS + text.encode(errors="replace"), MARK, JOB_TEXTS) == real


@pytest.mark.parametrize("field", [name for name, kind in FIELDS.items() if kind is Kind.TEXT])
@given(text=TEXTS)
def test_no_text_of_a_job_changes_another_field_or_another_job(field: str, text: str) -> None:
    first, *others = REAL_JOBS.split(f"{MARK}r\n".encode())
    number, *values = first.decode().split(f"{MARK}f")
    values[list(FIELDS).index(field)] = text
    changed = f"{MARK}f".join([number, *values]).encode(errors="replace")
    before = parse_jobs(REAL_JOBS, MARK, JOB_TEXTS)
    after = parse_jobs(f"{MARK}r\n".encode().join([changed, *others]), MARK, JOB_TEXTS)
    assert list(after) == list(before)
    job = dataclasses.replace(
        after.pop(int(number)), **{name: getattr(before[int(number)], name) for name in OF_TEXT[field]}
    )
    assert {int(number): job, **after} == before


OF_TEXT = {
    "reason": ["reason", "explanation"], "reasonlist": ["explanation"], "partition": ["partition"],
    "username": ["user"], "batchhost": ["batch_host"], "name": ["name"], "comment": ["comment"],
    "admin_comment": ["admin_comment"],
}  # fmt: skip
"""A field that anybody may choose -> what it is the value of."""


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=4))
def test_the_texts_of_a_job_are_its_own_and_whole(given_texts: list[tuple[str, str, str]]) -> None:
    text = "".join(
        f"{MARK}f".join([str(number), *texts]) + f"{MARK}r\n" for number, texts in enumerate(given_texts, 3)
    )
    found = parse_texts(text.encode(errors="surrogatepass"), JOB_TEXTS, MARK)
    assert found == {
        number: dict(zip(JOB_TEXTS, texts, strict=True)) for number, texts in enumerate(given_texts, 3)
    }


@given(TEXTS)
def test_a_text_alone_is_no_text_of_a_job(text: str) -> None:
    assert parse_texts(text.encode(errors="replace"), JOB_TEXTS, MARK) == {}


def parsed(text: str) -> Mapping[str, NodeState] | None:
    """The nodes; `None` if one occurs twice, which refuses the answer."""
    try:
        return parse_nodes(text)
    except ValueError as error:
        if "occurs twice" in str(error):
            return None
        raise


@pytest.mark.parametrize("field", ["Comment", "Extra", "Reason"])
@given(text=TEXTS)
def test_no_text_on_a_node_changes_a_node(field: str, text: str) -> None:
    first, second = (line.partition(" Reason=")[0] for line in NODES[:2])
    second = second.replace("NodeName=debug-", "NodeName=other-")
    before = parse_nodes(f"{first}\n{second}\n")
    after = parsed(f"{first} {field}={text} [root@1700000000]\n{second}\n")
    if after is None:
        assert "\nNodeName=" in text
        return
    for name, node in before.items():
        for value in (
            "base",
            "flags",
            "boot_time",
            "cpus_alloc",
            "cpus",
            "address",
            "hostname",
            "partitions",
        ):
            assert getattr(after[name], value) == getattr(node, value)


@given(text=TEXTS)
def test_a_nodes_own_words_change_no_field_before_them_and_no_other_node(text: str) -> None:
    """Root of a node chooses what its slurmd calls the operating system."""
    first = next(line for line in NODES if " OS=" in line)
    words = first.partition(" OS=")[2].partition(" RealMemory=")[0]
    other = first.replace("NodeName=", "NodeName=z")
    name, other_name = parse_nodes(first), parse_nodes(other)
    after = parsed(f"{first.replace(words, text)}\n{other}\n")
    if after is None:
        assert "\nNodeName=" in text
        return
    assert after.items() >= other_name.items()
    for node in set(after) & set(name):
        for value in ("name", "cpus_alloc", "cpus", "address", "hostname"):
            assert getattr(after[node], value) == getattr(name[node], value)


@given(TEXTS)
def test_anything_else_is_refused_or_nothing(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_jobs(text.encode(errors="replace"), MARK) == {}
    with contextlib.suppress(ValueError):
        assert all(f"NodeName={name}" in text for name in parse_nodes(text))


class Slurm:
    """A Slurm with one job, whose texts are all the same."""

    def __init__(self) -> None:
        self.text = ""

    def jobs(self) -> dict[int, Any]:
        return {
            7: doubles.job(
                7, "PENDING", name=self.text, comment=self.text, admin_comment=self.text, reason="x"
            )
        }

    def detailed_jobs(self) -> dict[int, Any]:
        return {n: dataclasses.replace(job, reservation=self.text) for n, job in self.jobs().items()}

    def reservations(self) -> list[Reservation]:
        return []

    def outputs(self, jobs: list[int]) -> dict[int, dict[str, str]]:
        fields = dict.fromkeys(OUTPUT, self.text)
        # What Slurm itself tells. The user is one who has no file.
        fields |= {"userid": str(2**31 - 7), "batchflag": "1", "arrayjobid": "7", "arraytaskid": "N/A"}
        return {number: fields | {"stdout": f"/{self.text}", "stderr": "/etc/passwd"} for number in jobs}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Slurm], list[str]]:
    folder = tmp_path_factory.mktemp("logs")
    cluster = Cluster(doubles.settings(folder))
    cluster.log.mkdir(parents=True)
    (folder / "etc").mkdir()
    (folder / "etc" / "slurm.conf").touch()

    def shown(slurm: Slurm) -> list[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(find, "Control", lambda *_: slurm)
            return [
                line
                for source in cluster.sources("7")
                for line in (source.heading, *source.last(40), *source.more())
            ]

    return shown


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
def test_logs_show_no_file_of_others_and_nothing_that_controls_a_terminal(
    logs: Callable[[Slurm], list[str]], text: str
) -> None:
    slurm = Slurm()
    slurm.text = text
    lines = logs(slurm)
    assert all(c.isprintable() or c == "\t" for line in lines for c in line)
    assert not any(line.startswith("root:") for line in lines), "/etc/passwd is not the job's user's"
    assert sum(line.startswith(("output:", "errors:")) for line in lines) == 2


@given(TEXTS, TEXTS)
def test_every_pattern_is_one_path(pattern: str, name: str) -> None:
    fields = {**dict.fromkeys(OUTPUT, name), "userid": str(os.getuid()), "batchflag": "1"}
    assert isinstance(job_output.output_path(pattern, 7, fields), str)
    assert all(
        found.path.startswith("/") for found in job_output.output_files(7, {**fields, "stdout": pattern})
    )
