"""What a record tells of its run's cores: how many, whether workers shared them, what others did on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from workload import cores

TICK = os.sysconf("SC_CLK_TCK")


def note(
    own: list[int], clock: float = 0.0, worked: float = 0.0, *busy: float, host: str = "a", node: str = "n0"
) -> Any:
    made = {"host": host, "node": node, "cores": own, "clock": clock, "worked": worked}
    return {**made, "busy": list(busy) or None}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # Ten seconds on a core of its own, of which others took two and nobody one.
        ([note([3], 5, 1, 100)], [note([3], 15, 8, 109)], (1, False, 0.2)),
        # Two workers of one host, one of which waits much; and two hosts whose cores have the same number.
        (
            [note([0], 0, 0, 0), note([1], 0, 0, 0)],
            [note([0], 10, 4, 4), note([1], 10, 9, 10)],
            (2, False, 0.05),
        ),
        (
            [note([0], 0, 0, 0), note([0], 0, 0, 0, host="b")],
            [note([0], 10, 9, 9), note([0], 10, 9, 10, host="b")],
            (2, False, 0.05),
        ),
        # Two workers of one node have all of its cores, which are nobody else's.
        ([note([0, 1]), note([0, 1])], [], (2, False, None)),
        # Two nodes on one core: its time counts once.
        (
            [note([0], 0, 0, 0), note([0], 0, 0, 0, node="n1")],
            [note([0], 10, 5, 10), note([0], 10, 4, 10, node="n1")],
            (1, True, 0.1),
        ),
        # The kernel counts in ticks: a little less than the worker's own time is nothing, not less.
        ([note([0], 0, 0, 0)], [note([0], 10, 10, 9.98)], (1, False, 0.0)),
        # A local node moves only from a core that it shares, and then nobody knows whose time it was.
        ([note([0], 0, 0, 0)], [note([1], 10, 5, 9)], (1, True, None)),
        # Two nodes that shared a core at the end of the run or at its beginning.
        ([note([0]), note([1], node="n1")], [note([0]), note([0], node="n1")], (1, True, None)),
        ([note([0]), note([0], node="n1")], [note([0]), note([1], node="n1")], (1, True, None)),
        # No file of the kernel's, or no note from after the training.
        ([note([0, 1])], [note([0, 1], 10)], (2, False, None)),
        ([note([0, 1], 0, 0, 1, 1)], [], (2, False, None)),
    ],
)
def test_what_the_notes_tell_together(before: list[Any], after: list[Any], expected: Any) -> None:
    found = cores.used(before, after)
    assert (found.cores, found.shared) == expected[:2]
    assert found.others == (None if expected[2] is None else pytest.approx(expected[2]))


def test_a_cores_time_is_read_as_the_kernel_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fields by proc(5): user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice."""
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 1000 2000 4 5 6 1 2\ncpu10 100 0 0 5 5 0 0 0\nintr 7\n"
    )
    monkeypatch.setattr(cores, "STAT", stat)
    assert cores.busy([0, 10]) == [21 / TICK, 100 / TICK]
    assert cores.busy([0, 1]) is None, "a container that shows other numbers"
    stat.write_text("cpu0 x\n")
    assert cores.busy([0]) is None
    stat.unlink()
    assert cores.busy([0]) is None


def test_another_program_on_the_same_core_is_seen() -> None:
    """The kernel shares a core between two that would have all of it. Others here can only add to it."""
    before = os.sched_getaffinity(0)
    code = "import os, time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    os.sched_setaffinity(0, {min(before)})
    try:
        with subprocess.Popen([sys.executable, "-c", code]) as other:
            began, end = cores.mine("n", None), time.monotonic() + 1.0
            while time.monotonic() < end:
                pass
            found = cores.used([began], [cores.mine("n", None)])
            other.kill()
    finally:
        os.sched_setaffinity(0, before)
    assert found.cores == 1
    assert found.others is not None
    assert found.others > 0.2


def test_the_notes_of_a_program_are_of_one_host_on_local_nodes(tmp_path: Path) -> None:
    folder = tmp_path / "7.0"
    folder.mkdir()
    for rank, own in enumerate(([0], [0, 1])):
        made = note(own, host=f"debug-{rank}", node=f"debug-{rank}")
        (folder / f"{cores.TOPIC}-{rank}.json").write_text(json.dumps(made))
    assert cores.noted(tmp_path, "c5.large") == (3, False, None)
    assert cores.noted(tmp_path, "local.small") == (2, True, None)
    (folder / f"{cores.TOPIC}-2.json").write_text("{")
    assert cores.noted(tmp_path, "local.small") == (2, True, None)
    assert cores.noted(tmp_path / "none", None) is None
