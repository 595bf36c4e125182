"""A sweep on a real cluster, in a terminal that closes. Only the training is a stand-in."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import Checkout, until
from tests.support.mishaps import quick_benchmark

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 4}, default: true}
        slurm: {suspend_time: 4}
      slurm-stacks:benchmark: {nodes: 1, epochs: 2, data: synthetic, profile: sync}
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """A checkout that is up, with a short training and this machine's Python as training environment."""
    folder = tmp_path_factory.mktemp("sweep")
    made = Checkout(folder / "a checkout", STACK)
    quick_benchmark(made)
    try:
        made.cluster("up", check=True)
        yield made
    finally:
        left = made.close()
    assert left == []


class Watched:
    """`./cluster run` on a terminal of its own."""

    def __init__(self, checkout: Checkout, *arguments: str) -> None:
        self._master, slave = os.openpty()
        self.process = subprocess.Popen(
            [str(checkout.folder / "cluster"), "run", "--stack", "test", *arguments],
            env={**checkout.env, "TERM": "xterm", "LINES": "40"},
            preexec_fn=lambda: os.login_tty(slave),  # noqa: PLW1509  nothing else runs in this process
            pass_fds=[slave],
        )
        os.close(slave)
        self.screen = ""

    def shows(self, text: str) -> bool:
        """Read new output, and return whether the whole output matches a regular expression."""
        try:
            self.screen += os.read(self._master, 1 << 16).decode(errors="replace")
        except OSError:  # the command has ended
            return True
        return re.search(text, self.screen) is not None

    def press_ctrl_c(self) -> int:
        os.write(self._master, b"\x03")
        return self._ended()

    def close_terminal(self) -> int:
        os.close(self._master)
        return self.process.wait(60)

    def _ended(self) -> int:
        while not self.shows("\0"):
            pass
        os.close(self._master)
        return self.process.wait(60)


@contextmanager
def watched(checkout: Checkout, *arguments: str) -> Iterator[Watched]:
    made = Watched(checkout, *arguments)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
            made.process.wait()


@contextmanager
def held(checkout: Checkout) -> Iterator[None]:
    """Let no further training begin, so that what the test looks at does not change."""
    hold = checkout.folder.parent / "hold"
    hold.touch()
    try:
        yield
    finally:
        hold.unlink()


def results(checkout: Checkout) -> list[dict[str, Any]]:
    """Return the kept results in the order of their jobs."""
    return sorted(checkout.results(), key=lambda record: int(record["job_id"]))


def labels(checkout: Checkout) -> list[Path]:
    """Return the labels of runs under way; the checkout has no file of a sweep."""
    assert list(checkout.state.glob("**/*sweep*")) == []
    return list(checkout.run_directory.glob("shared/bench/*/*/sweep.json"))


def ran(checkout: Checkout) -> list[tuple[int, float, float]]:
    """Return job, begin and end of every training that has ended."""
    notes = [file.read_text().split() for file in checkout.run_directory.glob("shared/bench/*/*/ran")]
    return sorted((int(job), float(begin), float(end)) for job, begin, end in notes)


def test_a_sweep_outlives_its_terminal_and_ends_in_the_report(checkout: Checkout) -> None:
    with watched(checkout, "--nodes", "1,2", "--repeat", "2") as terminal:
        until(lambda: terminal.shows("[1-3] of 4 done"), 120, "the first result")
        with held(checkout):
            assert "queued" in terminal.screen
            assert terminal.close_terminal() == 130
            assert 2 <= len(results(checkout)) < 5, "that of `up`, and the first of the sweep"

            other = checkout.cluster("run", "--nodes", "4")
            assert other.returncode == 3
            assert "--nodes 1,2 --repeat 2" in other.stderr

    until(lambda: len(ran(checkout)) == 5, 120, "the jobs, which nobody watches")
    times = ran(checkout)
    assert [job for job, _, _ in times] == [1, 2, 3, 4, 5]
    assert all(before[2] <= after[1] for before, after in itertools.pairwise(times)), "one after another"

    done = checkout.cluster("run", check=True)
    assert "going on with --nodes 1,2 --repeat 2 of " in done.stderr
    assert [(r["job_id"], r["nodes"]) for r in results(checkout)][1:] == [
        ("2", 1), ("3", 1), ("4", 2), ("5", 2),
    ]  # fmt: skip
    # Each run waited for the one before it, which does not count as its start latency.
    begun = {job: begin for job, begin, _ in times}
    waited = [begun[job] - begun[2] for job in (3, 4, 5)]
    starts = [record["start_latency_seconds"] for record in results(checkout)][2:]
    assert all(0 <= start < wait for start, wait in zip(starts, waited, strict=True)), (starts, waited)
    *_, one, two, page, table = done.stdout.splitlines()
    assert one.split() == ["1", "2", "10.0", "1000", "0.9000", "1.00", "1"]
    assert two.split() == ["2", "2", "5.0", "2000", "0.9000", "2.00", "2"]
    assert "<html" in Path(page).read_text()[:500]
    assert "local.small" in Path(table).read_text()
    assert labels(checkout) == []


# By default tests/cli/test_sweep_command.py has failed runs.
@pytest.mark.wide
def test_a_run_that_fails_is_named_with_the_end_of_its_output(checkout: Checkout) -> None:
    reason = checkout.run_directory / "shared" / "bench" / "fail"
    reason.touch()
    failed = checkout.cluster("run", "--nodes", "1")
    reason.unlink()
    assert failed.returncode == 1
    assert "ended without a result (FAILED); the end of its output, in " in failed.stderr
    assert "no such luck" in failed.stderr
    assert labels(checkout) == []


# By default tests/node/test_sweep_runs.py and tests/cli/test_sweep_command.py have this refusal.
@pytest.mark.wide
def test_a_workload_that_was_changed_since_is_not_on_the_cluster(checkout: Checkout) -> None:
    file = checkout.folder / "workload" / "options.py"
    whole = file.read_text()
    file.write_text(f"{whole}# changed\n")
    changed = checkout.cluster("run", "--nodes", "1")
    file.write_text(whole)
    assert (changed.returncode, changed.stdout) == (1, "")
    assert "has changed since the cluster came up" in changed.stderr
    assert labels(checkout) == []


def test_ctrl_c_lets_the_jobs_go_on_and_cancel_ends_them(checkout: Checkout) -> None:
    with watched(checkout, "--nodes", "1", "--repeat", "9") as terminal:
        until(lambda: terminal.shows("[1-3] of 9 done"), 120, "the first result")
        with held(checkout):
            assert terminal.press_ctrl_c() == 130
            assert "the jobs go on." in terminal.screen
            assert checkout.execute("squeue", "--noheader").count("keras") >= 1
            cancelled = checkout.cluster("run", "--cancel", check=True)
    assert "jobs ended; " in cancelled.stderr
    until(lambda: not checkout.execute("squeue", "--noheader"), 120, "an empty queue")
    assert labels(checkout) == []


@pytest.mark.wide
def test_a_sweep_is_dropped_with_its_cluster_and_what_was_kept_stays(checkout: Checkout) -> None:
    with watched(checkout, "--nodes", "1", "--repeat", "9") as terminal:
        until(lambda: terminal.shows("0 of 9 done"), 120, "the table")
        assert terminal.press_ctrl_c() == 130
    have = results(checkout)
    checkout.cluster("down", check=True)
    gone = checkout.cluster("run")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "[cluster.not-up]" in gone.stderr
    assert results(checkout) == have
    assert labels(checkout) == []
