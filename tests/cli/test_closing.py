"""Partitions that a command closes are opened again, whoever is killed, and nobody else's are."""

from __future__ import annotations

import dataclasses
import math
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.changes import closing, decision
from cli.changes.closing import WORKING_SECONDS, BusyError, Holder
from cli.changes.decision import Hold
from cli.changes.table import Change
from infra.effects import Kind
from infra.errors import EXIT_REFUSED, UserError
from infra.program.stack import Stack
from node.slurm.closing import described, read
from tests.support.doubles import design
from tests.support.small_slurm import SmallSlurm, killed

RUNS = "7|ann|cpu|cpu-1|RUNNING|"
FEWER = Change(
    "partitions.nodes.max", "partition cpu", Kind.ENDS, "2", "1", partition="cpu", nodes=frozenset({"cpu-1"})
)
DESIGN = design(stack="test")
OPEN = {"cpu": "UP", "gpu": "UP"}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallSlurm:
    there = SmallSlurm(tmp_path / "a head")
    path = f"{there.folder}/bin:/usr/bin:/bin"
    monkeypatch.setattr("node.slurm.environment.PATH", path)
    monkeypatch.setattr(decision, "RELEASE_PAUSE_SECONDS", 0.0)
    return there


def elsewhere(command: str = "up", checkout: str = "another") -> Holder:
    """A command of another machine."""
    return dataclasses.replace(Holder.of(None, command), process="other-boot/1 77 88", checkout=checkout)


def dead(command: str = "up") -> Holder:
    """A command of this machine that was killed."""
    with subprocess.Popen(["sleep", "60"]) as process:
        machine, _, _ = Holder.of(None, command).process.split(" ")
        started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        process.kill()
    return dataclasses.replace(Holder.of(None, command), process=f"{machine} {process.pid} {started}")


def up(slurm: SmallSlurm, holder: Holder, said: list[str], *, replace: bool) -> decision.CheckedChanges:
    reach = slurm.control(holder=holder)
    return decision.check_changes([FEWER], ["cpu", "gpu"], reach, said.append, replace=replace, design=DESIGN)


# --- the mark ---------------------------------------------------------------------------------------------


def test_what_a_command_closes_is_marked_before_and_opened_by_it(slurm: SmallSlurm) -> None:
    control = slurm.control("down")
    assert control.hold("DOWN") == (["cpu", "gpu"], [])
    assert slurm.states == {"cpu": "DOWN", "gpu": "DOWN"}
    mark = read(slurm.folder / "state")
    assert mark is not None
    assert (mark.command, mark.token, mark.names) == ("down", control.holder.token, ["cpu", "gpu"])
    assert slurm.mark.stat().st_mode & 0o777 == 0o644, "the elastic daemon reads it for `status`"
    shown = described(mark, "test")
    assert shown is not None
    assert (shown["partitions"], shown["opened_by"]) == (["cpu", "gpu"], "./cluster up --stack test")
    assert control.release() == ["cpu", "gpu"]
    assert (slurm.states, slurm.mark.exists()) == (OPEN, False)
    assert control.release() == []


@pytest.mark.parametrize("before", ["DOWN", "INACTIVE"])
def test_what_an_administrator_has_closed_before_stays_closed(slurm: SmallSlurm, before: str) -> None:
    slurm.set("gpu", before)
    control = slurm.control()
    assert control.hold("DOWN")[0] == ["cpu"]
    control.release()
    assert slurm.states == {"cpu": "UP", "gpu": before}


def test_a_drained_partition_starts_no_job_meanwhile_and_is_drained_again(slurm: SmallSlurm) -> None:
    """Slurm starts what waits in it, and those jobs would be ended."""
    slurm.set("cpu", "DRAIN")
    control = slurm.control()
    assert control.hold("DOWN", ["gpu"])[0] == ["cpu"]
    assert slurm.states["cpu"] == "DOWN"
    assert control.release() == ["cpu"]
    assert slurm.states == {"cpu": "DRAIN", "gpu": "UP"}


@pytest.mark.parametrize("since", ["INACTIVE", "DRAIN", "UP"])
def test_what_somebody_has_changed_since_stays_as_it_is(slurm: SmallSlurm, since: str) -> None:
    control = slurm.control()
    control.hold("DOWN")
    slurm.set("cpu", since)
    (slurm.folder / "partition" / "gpu").unlink()  # the change has removed it
    assert control.release() == []
    assert slurm.states == {"cpu": since}
    assert not slurm.mark.exists()


def test_none_is_closed_if_one_cannot_be(slurm: SmallSlurm) -> None:
    slurm.set("cpu", "DRAIN")
    (slurm.folder / "stiff" / "gpu").touch()
    with pytest.raises(UserError):
        slurm.control().hold("DOWN")
    assert slurm.states == {"cpu": "DRAIN", "gpu": "UP"}
    assert not slurm.mark.exists()


def test_a_mark_of_which_nothing_is_closed_any_more_is_removed(slurm: SmallSlurm) -> None:
    first = slurm.control(holder=dead())
    first.hold("DOWN", ["gpu"])
    for name in OPEN:
        slurm.set(name, "INACTIVE")
    assert slurm.control("down").hold("DOWN", former=first.holder.token)[0] == []
    assert not slurm.mark.exists()


def test_nothing_is_closed_without_a_mark(slurm: SmallSlurm) -> None:
    slurm.mark.parent.rmdir()
    with pytest.raises(UserError):
        slurm.control().hold("DOWN", ["gpu"])
    assert (slurm.states, slurm.changes) == (OPEN, [])


def test_a_silent_slurm_is_no_success(slurm: SmallSlurm) -> None:
    control = slurm.control()
    control.hold("DOWN", ["gpu"])
    (slurm.folder / "silent").touch()
    with pytest.raises(UserError, match="does not answer"):
        control.hold("DOWN", ["gpu"])
    assert control.release() is None
    assert slurm.mark.exists()


def test_what_the_elastic_daemon_has_closed_for_a_moment_is_held(slurm: SmallSlurm) -> None:
    """It opens its own again in the next moment, unless the mark names them (test_reconfiguration.py)."""
    (slurm.folder / "elastic" / "closed-partitions.json").write_text('["cpu"]')
    for name in ("cpu", "gpu"):
        slurm.set(name, "DOWN")
    control = slurm.control()
    assert control.hold("DOWN")[0] == ["cpu"], "an administrator has closed gpu"
    assert control.release() == ["cpu"]


def test_another_commands_mark_is_not_released(slurm: SmallSlurm) -> None:
    first, second = slurm.control(holder=dead()), slurm.control("down")
    first.hold("DOWN", ["gpu"])
    former = first.holder.token
    held, _ = second.hold("DOWN", former=former)
    assert held == ["cpu", "gpu"], "what the first has closed is taken over"
    assert first.release() == []
    assert slurm.states == {"cpu": "DOWN", "gpu": "DOWN"}
    assert second.release() == ["cpu", "gpu"]


def test_of_two_commands_that_have_found_no_mark_one_closes_and_the_other_is_refused(
    slurm: SmallSlurm,
) -> None:
    """Two laptops at the same moment: both have looked. Neither takes the other's silence for consent."""
    first, second = slurm.control(), slurm.control("down")
    assert (first.look(), second.look()) == ((None, []), (None, []))
    first.hold("DOWN", ["gpu"])
    with pytest.raises(BusyError):
        second.hold("DOWN")
    with pytest.raises(BusyError):
        decision.drain(second, "test", print, lambda _jobs: pytest.fail("nobody is asked"))
    assert slurm.states == {"cpu": "DOWN", "gpu": "UP"}
    assert first.release() == ["cpu"]
    assert [file.name for file in slurm.mark.parent.iterdir()] == []


def test_a_command_that_comes_second_in_the_same_moment_finds_the_others_link(slurm: SmallSlurm) -> None:
    """The mark comes between the second's look and its own link."""
    second = slurm.control("down")
    line = closing.hold_line(second.place, second.holder, "DOWN", ["gpu"])
    before, link, after = line.partition("ln ")
    assert link
    raced = f"{before}:; echo token=other >{shlex.quote(str(slurm.mark))}; ln {after}"
    env = {"PATH": f"{slurm.folder}/bin:/usr/bin:/bin"}
    done = subprocess.run(["/bin/sh", "-c", raced], env=env, capture_output=True, text=True, check=True)
    with pytest.raises(BusyError):
        closing.held(done.stdout)
    assert (slurm.states, slurm.mark.read_text()) == (OPEN, "token=other\n")


@pytest.mark.parametrize("text", ["", "token=\n", "command=up\nat=x\npartitions=cpu:DOWN:UP\n", "\0\xff=\n"])
def test_a_mark_that_is_damaged_is_said_and_stops_no_command(slurm: SmallSlurm, text: str) -> None:
    slurm.mark.write_text(text)
    assert read(slurm.folder / "state") is None
    said: list[str] = []
    assert Hold(slurm.control(), "test", said.append).open_interrupted()
    assert [str(slurm.mark) in line for line in said] == [True]
    decision.drain(slurm.control("down"), "test", said.append, lambda _jobs: None)
    assert slurm.states == {"cpu": "DOWN", "gpu": "DOWN"}
    mark = read(slurm.folder / "state")
    assert mark is not None
    assert mark.command == "down"


@pytest.mark.parametrize(
    "more",
    [
        "",
        "at=nan\n",
        "at=1e999\n",
        f"at={10**11}\n",
        "at=x\npartitions=a:b\n",
        f"partitions={'a' * (2 << 20)}\n",
    ]
    + [f"process={process}\n" for process in ("x", "a \u00b2 \u00b2", f"a {'9' * 5000} 1", "a 1 2 3")],
    ids=lambda text: text[:12].strip(),
)
def test_what_a_mark_lacks_keeps_nobody_waiting(slurm: SmallSlurm, more: str) -> None:
    """It was cut off, or written by a clock that was set back since."""
    slurm.set("cpu", "DOWN")
    slurm.mark.write_text(f"partitions=cpu:DOWN:UP\ntoken=1\n{more}")
    if (mark := described(read(slurm.folder / "state"), "test")) is not None:
        assert math.isfinite(mark["at"])
        assert not closing.with_life(mark, Stack(slurm.folder, "test"))["works"]
    assert Hold(slurm.control(), "test", print).open_interrupted()
    assert not slurm.mark.exists()
    assert slurm.states["cpu"] == "UP"


def test_partitions_of_any_name_are_closed_and_opened(slurm: SmallSlurm) -> None:
    """Those that people make with scontrol. Only a blank or a colon is no part of a name here."""
    names = ["a+b", "a=b", "*", "[0-9]", "'q'", '"', "\\", "$(id)", "-n", "ü", "cp"]
    for name in names:
        slurm.set(name, "UP")
    slurm.set("a b", "UP")
    slurm.set("a:b", "UP")
    before = slurm.states
    control = slurm.control()
    held, _ = control.hold("DOWN")
    assert sorted(held) == sorted([*names, "cpu", "gpu"])
    assert {name for name, state in slurm.states.items() if state == "UP"} == {"a b", "a:b"}
    mark = read(slurm.folder / "state")
    assert mark is not None
    assert mark.names == held
    assert control.release() == held
    assert slurm.states == before


def test_who_finds_all_closed_by_a_command_of_the_same_moment_leaves_its_mark(slurm: SmallSlurm) -> None:
    """The other has closed all after this one's look for a mark, and before its look at the partitions."""
    first, second = slurm.control(), slurm.control("down")
    line = closing.hold_line(second.place, second.holder, "DOWN")
    before, wait, after = line.partition("mine=; taken=; ")
    assert wait
    other = closing.hold_line(first.place, first.holder, "DOWN")
    raced = f"{before}{wait}(cd /; {other}) >/dev/null 2>&1; {after}"
    env = {"PATH": f"{slurm.folder}/bin:/usr/bin:/bin"}
    done = subprocess.run(["/bin/sh", "-c", raced], env=env, capture_output=True, text=True, check=True)
    with pytest.raises(BusyError):
        closing.held(done.stdout)
    assert slurm.states == {"cpu": "DOWN", "gpu": "DOWN"}
    assert first.release() == ["cpu", "gpu"]
    assert slurm.states == OPEN


def test_a_mark_that_nobody_could_read_before_the_change_is_obeyed_after_it(slurm: SmallSlurm) -> None:
    """The controller was gone, and a new one takes over with Slurm's state."""
    slurm.control(holder=dead()).hold("DOWN", ["gpu"])
    (slurm.folder / "silent").touch()
    slurm.jobs("no record")
    said: list[str] = []
    checked = up(slurm, Holder.of(None, "up"), said, replace=True)
    checked.begin(lambda: None)
    (slurm.folder / "silent").unlink()
    slurm.jobs()
    checked.release()
    assert (slurm.states, slurm.mark.exists()) == (OPEN, False)


# --- who still works --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("holder", "age", "works"),
    [
        (lambda: Holder.of(None, "up"), WORKING_SECONDS * 9, True),
        (dead, 0.0, False),
        (elsewhere, WORKING_SECONDS / 2, True),
        (elsewhere, WORKING_SECONDS * 2, False),
    ],
    ids=["alive here", "killed here", "elsewhere, just now", "elsewhere, long ago"],
)
def test_a_command_that_works_is_not_taken_for_an_interrupted_one(
    slurm: SmallSlurm, holder: Callable[[], Holder], age: float, works: bool
) -> None:
    slurm.control(holder=holder()).hold("DOWN", ["gpu"])
    text = slurm.mark.read_text()
    (at,) = [line for line in text.splitlines() if line.startswith("at=")]
    slurm.mark.write_text(text.replace(at, f"at={float(at.removeprefix('at=')) - age}"))
    said: list[str] = []
    hold = Hold(slurm.control(), "test", said.append)
    if works:
        with pytest.raises(UserError) as caught:
            hold.open_interrupted()
        assert (caught.value.code, caught.value.exit_code) == ("cluster.busy", EXIT_REFUSED)
        assert slurm.states == {"cpu": "DOWN", "gpu": "UP"}
    else:
        assert hold.open_interrupted()
        assert slurm.states == OPEN
        assert len(said) == 1
        assert "(cpu)" in said[0]


def test_the_lock_of_a_checkout_tells_that_its_former_command_is_over(slurm: SmallSlurm) -> None:
    """After a restart of this machine no process can be compared."""
    own = Holder.of(Stack(slurm.folder, "test"), "up")
    slurm.control(holder=elsewhere(checkout=own.checkout)).hold("DOWN", ["gpu"])
    assert Hold(slurm.control(), "test", print).open_interrupted()
    assert slurm.states == OPEN


# --- a kill at each step ----------------------------------------------------------------------------------


def each_kill(slurm: SmallSlurm, action: Callable[[Holder], object], *jobs: str) -> list[dict[str, str]]:
    """Kill a command before each of its calls, let `up` come after it, and return the states in between."""
    seen = []
    for calls in range(20):
        for name in OPEN:
            slurm.set(name, "UP")
        slurm.jobs(*jobs)
        slurm.calls = calls
        over = not killed(lambda: action(dead()))
        slurm.calls = None
        slurm.jobs()
        seen.append(slurm.states)
        said: list[str] = []
        up(slurm, Holder.of(None, "up"), said, replace=True)
        assert slurm.states == OPEN, calls
        assert not slurm.mark.exists()
        assert any("was interrupted" in line for line in said) == (seen[-1] != OPEN)
        if over:
            return seen
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("replace", [False, True])
def test_up_that_is_killed_anywhere_leaves_nothing_closed_after_the_next_up(
    slurm: SmallSlurm, replace: bool
) -> None:
    def change(holder: Holder) -> None:
        checked = up(slurm, holder, [], replace=replace)
        checked.begin(lambda: None)
        slurm.run("", 1.0)  # the engine's work
        checked.release()

    seen = each_kill(slurm, change, *([RUNS] if replace else []))
    assert {"cpu": "DOWN", "gpu": "UP"} in seen, "it was killed while it was closed"
    assert seen[-1] == OPEN


def test_down_that_is_killed_anywhere_leaves_a_cluster_that_the_next_up_opens(slurm: SmallSlurm) -> None:
    def down(holder: Holder) -> None:
        decision.drain(slurm.control(holder=holder), "test", lambda _: None, lambda _: None)

    assert each_kill(slurm, down, RUNS)[-1] == {"cpu": "DOWN", "gpu": "DOWN"}, "the destroy would follow"


def test_down_after_a_killed_up_goes_on_and_what_it_took_over_is_its_own_to_open(slurm: SmallSlurm) -> None:
    slurm.control(holder=dead("up --replace")).hold("INACTIVE", ["gpu"])
    said: list[str] = []
    control = slurm.control("down")
    decision.drain(control, "test", said.append, lambda _jobs: None)
    assert slurm.states == {"cpu": "INACTIVE", "gpu": "DOWN"}
    assert "they stay so" in said[0]
    assert control.release() == ["cpu", "gpu"]
    assert slurm.states == OPEN


def test_a_line_that_is_cut_off_in_the_middle_of_its_work_is_found(slurm: SmallSlurm) -> None:
    """The lost connection: the line has closed the first of two, or has only left the mark."""
    programs, close = slurm.folder / "bin", "scontrol update PartitionName=$name State=DOWN ||"
    line = closing.hold_line(slurm.control().place, dead(), "DOWN")
    for closed in (0, 1):
        cut = line.replace(close, f"[ $((n += 1)) -le {closed} ] || kill -9 $$; {close}")
        assert cut != line
        env = {"PATH": f"{programs}:/usr/bin:/bin"}
        done = subprocess.run(["/bin/sh", "-c", f"n=0; {cut}"], env=env, check=False, capture_output=True)
        assert done.returncode == -9
        assert slurm.mark.exists()
        assert [*slurm.states.values()].count("DOWN") == closed
        assert Hold(slurm.control(), "test", print).open_interrupted()
        assert (slurm.states, slurm.mark.exists()) == (OPEN, False)
