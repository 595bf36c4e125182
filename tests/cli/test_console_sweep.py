"""How a sweep is shown: a table that fits the terminal and hides nothing that matters; lines elsewhere."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console as RichConsole

from cli.commands.sweep.table import Board, Line, Phase, Row, show_summary, tally, window
from cli.console.progress import Console

LONG = "waits: quota: " + "no more than two nodes of this kind " * 4


def row(number: int, phase: Phase, text: str = "", **more: object) -> Row:
    return Row(number, 2, number, phase, text or phase, job=number + 40, **more)  # type: ignore[arg-type]


def sweep(count: int, over: int) -> list[Row]:
    """Return rows: the first `over` are done, the next one waits, the others are queued."""
    figures: dict[str, Any] = {"seconds": 12.25, "images_per_second": 1234.5, "accuracy": 0.98765}
    done = [row(n, "done", **figures) for n in range(1, over + 1)]
    now = [row(over + 1, "waits", LONG, detail=LONG)] if over < count else []
    return done + now + [row(n, "queued") for n in range(over + 2, count + 1)]


def terminal(width: int = 80, height: int = 24) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    rich = RichConsole(file=text, width=width, height=height, force_terminal=True, color_system=None)
    return Console(rich), text


def drawn(rows: Sequence[Row], note: str = "", *, width: int = 80, height: int = 24) -> list[str]:
    """Return what the terminal shows while the sweep runs."""
    console, _ = terminal(width, height)
    board = Board(console, "stack local", 3)
    board.show(rows, note)
    screen = RichConsole(file=io.StringIO(), width=width, height=height, color_system=None)
    with screen.capture() as capture:
        screen.print(board._draw())
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_table_has_every_figure_and_the_present_runs_cause_at_length() -> None:
    lines = drawn(sweep(4, 2))
    assert lines[0].startswith("stack local: 2 of 4 done, 2 to go · 0:0")
    assert " ".join(lines[1].split()) == "run nodes rep. job state train s images/s accuracy"
    assert lines[2].split() == ["1", "2", "1/3", "41", "done", "12.2", "1234", "0.9877"]
    assert lines[4].split()[:5] == ["3", "2", "3/3", "43", "waits:"]
    assert lines[4].split()[-3:] == ["–", "–", "–"], "a long state does not squeeze the numbers away"
    assert lines[5].split() == ["4", "2", "4/3", "44", "queued", "–", "–", "–"]
    assert " ".join(lines[6:]).startswith(f"run 3, job 43: {LONG[:100]}")
    assert len(lines) == 8
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("height", [6, 24, 50])
@pytest.mark.parametrize("over", [0, 17, 40])
def test_a_long_sweep_fits_the_terminal_around_what_happens_now(width: int, height: int, over: int) -> None:
    lines = drawn(sweep(40, over), "the cluster does not answer", width=width, height=height)
    assert len(lines) < max(height, 13)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(f"stack local: {over} of 40 done")
    if over < 40:
        assert any(line.split()[:1] == [str(over + 1)] for line in lines)
    assert "the cluster does not answer" in lines


def test_the_window_stays_within_the_rows() -> None:
    for count in (1, 5, 40):
        for over in range(count + 1):
            for room in range(-3, 45):
                above, rows, below = window(sweep(count, over), room)
                assert above + len(rows) + below == count
                assert len(rows) <= max(room, 3)
                assert min(above, below) >= 0
                assert over == count or over + 1 in [r.number for r in rows]


def test_when_it_ends_the_whole_table_stays() -> None:
    console, text = terminal(height=10)
    with Board(console, "stack local", 3) as board:
        board.show(sweep(40, 12))
        board.show(sweep(40, 40))
    last = text.getvalue().rpartition("stack local: ")[2].splitlines()
    assert last[0].startswith("40 of 40 done ·")
    assert [line.split()[0] for line in last[2:] if line.strip() and line.split()[0].isdigit()] == [
        str(n) for n in range(1, 41)
    ]


def test_on_a_terminal_that_cannot_redraw_it_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console, text = terminal(200)
    with Board(console, "stack local", 1) as board:
        board.show([row(1, "runs", "the training starts")])
    assert [line[7:] for line in text.getvalue().splitlines()] == [
        "run 1 of 1 (2 nodes) job 41: the training starts"
    ]


def test_off_a_terminal_every_change_is_one_line() -> None:
    text = io.StringIO()
    with Board(Console(RichConsole(file=text, width=200, soft_wrap=True)), "stack local", 2) as board:
        board.show([row(1, "waits", LONG, detail=LONG), row(2, "queued")])
        board.show([row(1, "runs", "x", detail="running on [red]"), row(2, "queued")], "silent, 4:59 left")
        board.show([row(1, "runs", "x", detail="running on [red]"), row(2, "queued")], "silent, 4:57 left")
        board.show([row(1, "done", detail="done: 3 s"), row(2, "failed", detail="failed: no")])
    assert [line[7:] for line in text.getvalue().splitlines()] == [
        f"run 1 of 2 (2 nodes, 1 of 2) job 41: {LONG}",
        "silent, 4:59 left",
        "run 1 of 2 (2 nodes, 1 of 2) job 41: running on [red]",
        "the cluster answers again",
        "run 1 of 2 (2 nodes, 1 of 2) job 41: done: 3 s",
        "run 2 of 2 (2 nodes, 2 of 2) job 42: failed: no",
    ]


def test_the_count_is_honest() -> None:
    assert tally(sweep(6, 2)) == "2 of 6 done, 4 to go"
    assert tally([row(1, "done"), row(2, "failed"), row(3, "runs")]) == "1 of 3 done, 1 failed, 1 to go"
    assert tally([row(1, "done"), row(2, "failed")]) == "1 of 2 done, 1 failed"


def test_a_summary_without_one_node_claims_no_speed_up() -> None:
    text = io.StringIO()
    title = "Medians on debug (local.small), 2 epochs, sync, digits-synthetic (not MNIST)"
    show_summary(title, [Line(2, 3, 12.25, None, 0.5, None)], RichConsole(file=text, width=160))
    blank, first, _, values = text.getvalue().splitlines()
    assert (blank, first) == ("", title)
    assert values.split() == ["2", "3", "12.2", "–", "0.5000", "–"]


def test_the_time_of_a_whole_program_is_not_called_training() -> None:
    def heads(*lines: Line) -> list[str]:
        text = io.StringIO()
        show_summary("t", lines, RichConsole(file=text, width=160))
        return text.getvalue().splitlines()[2].split()

    line = Line(2, 3, 12.25, None, 0.5, None)
    assert heads(line)[2:4] == ["train", "s"]
    assert heads(dataclasses.replace(line, whole=True))[2:4] == ["run", "s"]
    assert heads(line)[-1] == "speed-up"
    assert heads(line, dataclasses.replace(line, cores="2, shared"))[-1] == "cores"
    assert "allows" not in heads(dataclasses.replace(line, nodes=1, allowed=1.0)), "one node tells nothing"
    assert heads(dataclasses.replace(line, allowed=1.63))[-2:] == ["machine", "allows"]
    done = row(1, "done", detail="done: 3 s")
    assert "train s" in drawn([done])[1]
    assert "run s" in drawn([dataclasses.replace(done, whole=True)])[1]
