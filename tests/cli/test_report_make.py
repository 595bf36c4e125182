"""The report as a user sees it: the command, the two files, invalid results, no results."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli import main as cli
from cli import results
from cli.commands import report
from cli.commands.report import page, table
from cli.commands.report.runs import published_rows, published_runs
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.report_reader import Page, draw_equal_charts_once
from tests.support.report_records import keep, local, record, runs
from tests.support.wide import wide
from workload.result import KEYS

THEIRS = published_runs()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own, and a checkout with one stack file."""
    draw_equal_charts_once(monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project = tmp_path / "checkout"
    project.mkdir()
    (project / "Pulumi.local.yaml").write_text("config: {}\n")
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(project))
    return tmp_path / "state" / "slurm-stacks"


# --- the table -------------------------------------------------------------------------------------------


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_the_table_has_every_run_and_every_published_row() -> None:
    own = runs(record(2, 40.0), record(1, 64.5, cost_usd=None))
    found = rows(table.text([*own, *THEIRS]))
    assert [row["origin"] for row in found] == ["ours"] * 2 + ["published"] * 41
    assert set(found[0]) == set(table.COLUMNS)
    assert found[1]["cost_usd"] == ""
    assert float(found[1]["seconds_per_epoch"]) == pytest.approx(64.5 / 8)
    assert found[0]["comparable"] == "yes"
    for row, original in zip(found[2:], published_rows(), strict=True):
        assert (float(row["seconds_train"]), float(row["loss"]), float(row["accuracy"])) == (
            original.seconds, original.loss, original.accuracy,
        )  # fmt: skip
        assert (row["source"], int(row["nodes"])) == (original.source, original.nodes)


def test_every_scalar_of_a_record_is_a_column_and_comes_back() -> None:
    one = record(
        2,
        40.0,
        gpus_per_node=3,
        restarts=4,
        average_every=16,
        cores_shared=True,
        cores_others=0.25,
        exchange_seconds=0.05,
    )
    (row,) = rows(table.text(runs(one)))
    for key in set(KEYS) - {"apiVersion", "history", "devices", "versions", "phases", "stack"}:
        assert key in table.COLUMNS
        expected = one[key]
        if isinstance(expected, bool):
            expected = "yes" if expected else "no"
        assert (row[key] if isinstance(expected, str) else float(row[key])) == expected, key
    assert row["devices"] == "/device:CPU:0"
    assert row["phases"] == "import 5.5; train 40"
    assert row["versions"] == "python 3.11.7; tensorflow 2.21.0"


@pytest.mark.parametrize("evil", ["=1+1", "+1", "-1", "@SUM(A1)", '=cmd|" /C calc"!A0'])
def test_no_cell_is_a_formula(evil: str) -> None:
    (row,) = rows(table.text(runs(record(1, partition=evil, devices=[evil]), stack=evil)))
    assert row["partition"] == row["devices"] == row["stack"] == f"'{evil}"


# --- make ------------------------------------------------------------------------------------------------


def test_it_makes_a_page_and_a_table_outside_of_the_checkout(state: Path, tmp_path: Path) -> None:
    keep("local", local(1), local(2))
    made = report.make(["local"])
    assert made.page == state / "reports" / "local" / "report.html"
    assert made.table == made.page.with_name("report.csv")
    assert sorted(p.name for p in made.page.parent.iterdir()) == ["report.csv", "report.html"]
    assert len(rows(made.table.read_text())) == 2 + 41
    assert [p.name for p in (tmp_path / "checkout").iterdir()] == ["Pulumi.local.yaml"]


def test_stacks_are_compared_in_the_order_given(state: Path) -> None:
    keep("b", record(4, 10.0), record(1, 20.0))
    keep("a", record(1))
    made = report.make(["b", "a", "b"])
    assert made.page.parent == state / "reports" / "b+a"
    ours = [row for row in rows(made.table.read_text()) if row["origin"] == "ours"]
    assert [(row["stack"], row["nodes"]) for row in ours] == [("b", "1"), ("b", "4"), ("a", "1")]


def test_a_second_report_differs_only_in_its_time(tmp_path: Path) -> None:
    keep("local", local(1), local(2), local(2, 58.0))
    first, second = (report.make(["local"], tmp_path / name) for name in ("one", "two"))
    stamp = re.compile(r"· \d{4}-\d\d-\d\d \d\d:\d\d UTC")
    assert stamp.sub("", first.page.read_text()) == stamp.sub("", second.page.read_text())
    assert first.table.read_text() == second.table.read_text()


def test_a_stack_without_results_has_the_published_page(capsys: pytest.CaptureFixture[str]) -> None:
    made = report.make(["local"])
    output = capsys.readouterr().err
    assert "no results of stack local are kept yet: `./cluster up --stack local` makes one" in output
    assert Page(made.page.read_text()).of("h1") == [
        "No results of stack local yet; these are the published ones"
    ]
    assert len(rows(made.table.read_text())) == 41


def test_files_that_are_no_results_are_named_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    good, *bad = keep("local", local(1), *[local(2)] * 6)
    invalid = {"checkout": None, "result": local(2) | {"nodes": "two"}}
    texts = ["{", "[]", "", json.dumps(invalid), '{"loss": NaN}', "\ud800"]
    for path, text in zip(bad, texts, strict=True):
        path.write_bytes(text.encode(errors="surrogatepass"))
    huge, wrong = keep("local", local(2) | {"seconds_train": 1e300}, local(2) | {"seconds_total": 10**400})
    made = report.make(["local"])
    said, text = capsys.readouterr().err, Page(made.page.read_text()).text
    for path in (*bad, huge, wrong):
        assert f"left out, because it is not a valid result: {path}: " in said
        assert path.name in text
        assert str(path) not in text
    assert "result.nodes: 'two' is no int" in text
    assert len(rows(made.table.read_text())) == 1 + 41
    assert good.name in made.table.read_text()


def test_only_broken_files_are_like_none(capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = keep("local", local(1))
    path.write_text("x")
    report.make(["local"])
    output = capsys.readouterr().err
    assert str(path) in output
    assert "no results of stack local are kept yet" in output


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", "x" * 101, "a\0b", "a\nb"])
def test_names_that_are_no_stacks(name: str) -> None:
    with sentences.raises("report.stack-name") as caught:
        report.make([name])
    assert caught.value.exit_code == 2


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with sentences.raises("report.not-written") as caught:
        report.make(["local"], file)
    assert caught.value.exit_code == 1
    assert file.read_text() == "x"


def test_a_page_that_cannot_be_made_leaves_the_earlier_report(monkeypatch: pytest.MonkeyPatch) -> None:
    keep("local", local(1))
    made = report.make(["local"])
    before = made.page.read_bytes(), made.table.read_bytes()
    keep("local", local(2))

    def fail(*_: Any) -> str:
        raise RuntimeError("no")

    monkeypatch.setattr(page, "render", fail)
    with pytest.raises(RuntimeError):
        report.make(["local"])
    assert (made.page.read_bytes(), made.table.read_bytes()) == before


def test_what_results_keep_is_what_the_report_reads() -> None:
    kept = results.keep("local", local(2))
    made = report.make(["local"])
    ours = [row for row in rows(made.table.read_text()) if row["origin"] == "ours"]
    assert [row["source"] for row in ours] == [kept.name]


def test_the_table_says_whose_a_result_is(tmp_path: Path) -> None:
    keep("local", local(1))
    for number, name in ((8, "mine"), (9, "theirs")):
        (tmp_path / name).mkdir()
        results.keep("local", local(2, job_id=str(number)), tmp_path / name)
    made = report.make(["local"], project=None)
    ours = [row for row in rows(made.table.read_text()) if row["origin"] == "ours"]
    assert [(row["job_id"], row["checkout"]) for row in ours] == [
        ("7", ""),
        ("8", "mine"),
        ("9", "theirs"),
    ]
    text = Page(made.page.read_text()).text
    assert "checkout theirs" in text
    assert str(tmp_path) not in text, "the page may go to others"


# --- the command -----------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cluster", "report", *arguments])
        try:
            cli.main()
            code: Any = 0
        except SystemExit as error:
            code = error.code or 0
        text = capsys.readouterr()
        assert "Traceback" not in text.err
        return code, text.out, text.err

    return run


def test_the_command_prints_both_paths(command: Any, tmp_path: Path) -> None:
    keep("local", local(2))
    code, out, err = command("--output", str(tmp_path / "a folder"))
    assert (code, err) == (0, "")
    assert out.splitlines() == [str(tmp_path / "a folder" / name) for name in ("report.html", "report.csv")]
    assert all(Path(line).stat().st_size for line in out.splitlines())


def test_the_command_without_results_is_no_failure(command: Any) -> None:
    code, out, err = command()
    assert code == 0
    assert len(out.splitlines()) == 2
    assert "no results of stack local" in err


def test_a_stack_that_nobody_knows_is_exit_2(command: Any, state: Path) -> None:
    keep("other", local(2))
    code, out, err = command("--stack", "local", "--stack", "lokal")
    assert (code, out) == (2, "")
    assert "stack lokal: no results are kept of it" in err
    assert "Pulumi.lokal.yaml does not exist" in err
    assert "Stacks here: local. Results are kept of: other." in err
    assert not (state / "reports").exists()
    # Results without a stack file are enough: a clone may have gone.
    assert command("--stack", "other")[0] == 0


@pytest.mark.parametrize("cache", [*wide(True), False], ids=["empty cache", "no cache"])
def test_on_first_use_only_the_report_is_said_and_written(tmp_path: Path, cache: bool) -> None:
    """A new user: an empty cache, a home that cannot be written, other settings of matplotlib."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "matplotlibrc").write_text("lines.color: red\nfont.size: 40\nxtick.labelsize: 40\n")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/proc/none",
        "XDG_STATE_HOME": str(tmp_path / "s"),
        "SLURM_STACKS_PROJECT": str(ROOT),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    } | ({"XDG_CACHE_HOME": str(tmp_path / "c")} if cache else {})
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from cli.main import main; sys.argv[1:] = ['report']; main()"],
        cwd=work,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr.startswith("no results of stack local are kept yet")
    assert done.stderr.count("\n") == 1
    path = Path(done.stdout.splitlines()[0])
    assert path.is_relative_to(tmp_path / "s")
    assert {p.name for p in tmp_path.iterdir()} == {"work", "s", "checkout"} | ({"c"} if cache else set())
    assert [p.name for p in work.iterdir()] == ["matplotlibrc"]
    assert "font-size: 12px" in path.read_text()
    assert "40px" not in path.read_text()
