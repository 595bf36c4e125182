"""Kept results: each once, complete and in order; invalid files are named."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cli import results
from cli.commands import report
from cli.commands.report import table
from cli.console import tables
from infra.program import locations
from tests.support import sentences
from tests.support.sweep_cluster import record
from workload import result


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return locations.state_root()


def test_a_result_is_kept_once_however_often_it_is_found(state: Path) -> None:
    path = results.keep("test", record(2, 7))
    assert path.parent == state / "results" / "test" == results.folder("test")
    assert "-job-7-" in path.name
    assert json.loads(path.read_text()) == {"checkout": None, "result": record(2, 7)}
    assert results.keep("test", record(2, 7)) == path
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no draft is left"


@pytest.mark.parametrize("when", ["20200101T000000Z", "20990101T000000Z"])
def test_a_result_that_another_process_keeps_at_the_same_moment_is_kept_once(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    write = results.write_whole

    def both(path: Path, text: str) -> None:
        write(path, text)
        write(path.with_name(f"{when}{path.name[len(when) :]}"), text)

    monkeypatch.setattr(results, "write_whole", both)
    path = results.keep("test", record(2, 7))
    assert list(path.parent.iterdir()) == [path]


def test_jobs_of_the_same_number_on_other_clusters_are_other_results() -> None:
    one = results.keep("test", record(2, 7))
    assert results.keep("test", record(2, 7, loss=0.4)) != one
    assert results.keep("other", record(2, 7)).parent.name == "other"
    assert len(results.load("test")[0]) == 2


def test_results_are_read_oldest_first_and_what_is_none_is_named(state: Path) -> None:
    assert results.load("test") == ([], [])
    for when, job in (("20261122T000000Z", 2), ("20261121T235959Z", 1)):
        path = results.keep("test", record(1, job))
        path.rename(path.with_name(f"{when}-job-{job}-0.json"))
    (results.folder("test") / "broken.json").write_text("{")
    invalid = {"checkout": None, "result": {**record(1, 3), "loss": None}}
    (results.folder("test") / "other.json").write_text(json.dumps(invalid))
    (results.folder("test") / "notes.txt").write_text("mine")
    kept, wrong = results.load("test")
    assert [(one.record["job_id"], one.kept_at) for one in kept] == [
        ("1", "20261121T235959Z"),
        ("2", "20261122T000000Z"),
    ]
    broken, other = wrong
    assert broken.startswith(f"{results.folder('test')}/broken.json: ")
    assert other.startswith(f"{results.folder('test')}/other.json: result.loss: None is no")


def test_a_result_says_from_which_checkout_it_was_kept(tmp_path: Path) -> None:
    mine, other = tmp_path / "a" / "stacks", tmp_path / "b" / "stacks"
    paths = {results.keep("test", record(n, n), where): where for n, where in ((1, mine), (2, other))}
    unknown = results.keep("test", record(3, 3))
    kept, wrong = results.load("test")
    assert wrong == []
    assert {one.path: one.checkout for one in kept} == {**paths, unknown: None}
    assert results.keep("test", record(1, 1), mine) in paths, "kept once"
    names = results.short_names(one.checkout for one in kept)
    assert names == {None: None, mine: "a/stacks", other: "b/stacks"}
    assert results.short_names([mine]) == {None: None, mine: "stacks"}


@pytest.mark.parametrize(
    "content", [{}, [], {"checkout": 7, "result": {}}, {"checkout": "/x", "result": {}, "more": 1}]
)
def test_a_file_of_another_form_is_named(content: object) -> None:
    path = results.keep("test", record(2, 7)).with_name("20261121T141109Z-job-8.json")
    path.write_text(json.dumps(content))
    kept, (wrong,) = results.load("test")
    assert len(kept) == 1
    assert wrong.startswith(f"{path}: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_named() -> None:
    path = results.keep("test", record(1, 1))
    path.chmod(0)
    assert results.load("test") == ([], [f"{path}: [Errno 13] Permission denied: '{path}'"])


@pytest.mark.parametrize(
    "job", ["1/../../../x", "../7", "-1", "", "0", "7\n", "１２", "1" * 11, 7, True, "a\0b"]
)
def test_a_jobs_number_is_no_path(state: Path, job: object) -> None:
    for made in (record(2, 7), program_result()):
        with sentences.raises("result.not-valid", "result.job_id"):
            results.keep("test", {**made, "job_id": job})
    assert not state.exists(), "nothing was written, and no folder was made for it"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 500 + "1" + "}" * 500], ids=["list", "object"])
def test_a_kept_file_that_is_nested_without_end_is_one_line(state: Path, text: str) -> None:
    path = results.keep("test", record(2, 7)).with_name("20261121T141109Z-job-8.json")
    path.write_text(text)
    kept, wrong = results.load("test")
    assert len(kept) == 1
    assert wrong == [f"{path}: it is nested deeper than 20 levels"]


def test_a_draft_is_no_file_that_others_could_have_made(state: Path, tmp_path: Path) -> None:
    """A link of a name that can be foreseen is neither followed nor in the way."""
    place, victim = state / "results" / "test", tmp_path / "victim"
    place.mkdir(parents=True)
    victim.write_text("mine")
    target = place / "kept.json"
    for link in (target, target.with_name(f".kept.json.{os.getpid()}"), target.with_name(".kept.json.new")):
        link.symlink_to(victim)
    results.write_whole(target, "new")
    assert (target.read_text(), target.is_symlink(), victim.read_text()) == ("new", False, "mine")


def program_result() -> dict[str, Any]:
    """A valid record of a user's program."""
    made = {key: types[0]() for key, types in result.PROGRAM_KEYS.items()}
    made |= {"apiVersion": result.PROGRAM_API_VERSION, "nodes": 1, "workers": 1, "job_id": "7"}
    assert result.program_mistakes(made) == []
    return made


FIELDS = [(kind, key) for kind, keys in enumerate((result.KEYS, result.PROGRAM_KEYS)) for key in keys]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([10**400, "../x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(field=st.sampled_from(FIELDS), value=ANYTHING)
def test_whatever_a_job_writes_into_a_field_is_shown_and_kept_or_refused(
    field: tuple[int, str], value: object
) -> None:
    """What is accepted can be shown, compared and reported: nothing in a record makes that fail."""
    kind, key = field
    made = {**(record(2, 7), program_result())[kind], key: value}
    found = results.mistakes(made)
    assert len("; ".join(found)) < 20_000
    if found:
        return
    assert re.fullmatch("[1-9][0-9]*", made["job_id"] or "1")
    out = io.StringIO()
    tables.show_result(made, "alice\x1b[2J", console=Console(file=out, width=300))
    assert "\x1b" not in out.getvalue()
    json.dumps(made, allow_nan=False)
    kept = results.Kept(Path("20261121T141109Z-job-7-0-0.json"), made)
    runs, programs, wrong = report._runs("test", [kept], [], {None: None})
    assert len([*runs, *programs]) + len(wrong) == 1
    assert "\x1b" not in table.text(runs, programs)


def test_what_is_too_large_is_refused(state: Path) -> None:
    large: list[tuple[dict[str, Any], list[str]]] = [
        ({"devices": ["x"] * 100_001}, ["result"]),
        ({"stack": "x" * 1001}, ["result.stack", "1001", "1000"]),
        ({"cores": 2**60}, ["result.cores", "9007199254740992"]),
        ({"loss": -1e300}, ["result.loss"]),
        ({"machine": "a\x1b[2J"}, ["result.machine"]),
        ({"versions": {"a\nb": "1"}}, ["result.versions"]),
    ]
    for change, named in large:
        with sentences.raises("result.not-valid", *named):
            results.keep("test", {**record(2, 7), **change})
    lines = {"history": [{"a": 1}] * 1001}
    with sentences.raises("result.not-valid", "result.history", "1000"):
        results.keep("test", {**program_result(), **lines})
