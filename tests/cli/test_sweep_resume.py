"""A `./cluster run` that is cut off: it continues, is cancelled, refuses others, or ends with its cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli import results
from cli.commands.sweep import command, watch
from cli.console.progress import Console
from cli.providers.interface import Runs
from cli.providers.local.provider import LocalProvider
from infra.config import load_file
from infra.errors import UserError
from infra.program.stack import Stack
from node.benchmark import Run
from operations.access import StackUp
from tests.support.doubles import job
from tests.support.sweep_cluster import STACK, Killed, SweepUser, die, interrupt
from tests.support.wide import wide


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SweepUser:
    return SweepUser(tmp_path, monkeypatch, capsys)


def described(user: SweepUser) -> StackUp:
    """Return what a second command of this process is called with, in the middle of the first one."""
    return StackUp.of(Stack(user.project, "test"), load_file(user.project / "Pulumi.test.yaml"))


# --- cut off and continued ------------------------------------------------------------------------------


STAGES = [
    "open", "opened", "prepare", "prepared_one", "prepared", "submit", "sbatch", "sbatched", "submitted",
    "show", "shown", "keep", "close", "closed_one", "closed",
]  # fmt: skip


@pytest.mark.parametrize("call", [1, 3, *wide(2, 5, 8)])
@pytest.mark.parametrize("stage", STAGES)
def test_killed_anywhere_it_goes_on_and_submits_nothing_twice(
    user: SweepUser, monkeypatch: pytest.MonkeyPatch, stage: str, call: int
) -> None:
    calls = 0

    def count(_stage: str) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed

    monkeypatch.setattr(command, "BATCH", 2)
    user.slurm.hooks = {stage: count}
    for owner, name, its in (
        (results, "keep", "keep"), (Run, "prepare", "prepared_one"), (Run, "close", "closed_one"),
    ):  # fmt: skip
        if its == stage:
            monkeypatch.setattr(owner, name, followed(getattr(owner, name), count))
    wanted = ("--nodes", "1,2", "--repeat", "2")
    done = user.run(*wanted)
    told = stage == "closed" or (stage, call) == ("closed_one", 4)  # nothing is left to go on with
    if done.code == -9 and not told:
        under_way = user.left() != []
        assert under_way == (stage not in ("open", "opened", "prepare", "prepared_one"))
        done = user.run(*(() if under_way else wanted))
        assert done.code == 0, done.err
    assert len(user.slurm.submitted) == len(set(user.slurm.submitted)) == 4
    assert user.kept() == [(1, 1), (1, 2), (2, 3), (2, 4)]
    assert all(user.slurm.waits[number] == f"afterany:{number - 1}" for number in (2, 3, 4))
    assert user.left() == []


def followed(original: Callable[..., Any], hook: Callable[[str], None]) -> Callable[..., Any]:
    """Return a function that calls the given one and then the hook."""

    def wrapped(*arguments: Any) -> Any:
        value = original(*arguments)
        hook("")
        return value

    return wrapped


def test_ctrl_c_says_that_the_jobs_go_on_and_what_came_meanwhile_is_collected(user: SweepUser) -> None:
    def later(_stage: str) -> None:
        if user.slurm.looks == 4:
            raise KeyboardInterrupt

    user.slurm.hooks = {"shown": later}
    done = user.run("--nodes", "1,2", "--repeat", "2")
    assert done.code == 130
    assert "[sweep.interrupted]" in done.err
    assert "`./cluster run --stack test`" in done.err
    assert "`./cluster run --cancel --stack test`" in done.err
    user.slurm.hooks = {}
    for _ in range(20):
        user.slurm._go_on()  # nobody looks
    again = user.run()
    assert again.code == 0
    assert "going on with --nodes 1,2 --repeat 2 of " in again.err
    assert ": 4 of 4 results kept" in again.err
    assert len(user.kept()) == len(user.slurm.submitted) == 4
    assert [line.split()[:2] for line in again.out.splitlines() if line[:5] == "    1"] == [["1", "2"]]


def test_ctrl_c_before_everything_is_submitted_says_so(
    user: SweepUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "BATCH", 1)

    def third(_stage: str) -> None:
        if len(user.slurm.submitted) == 2:
            raise KeyboardInterrupt

    user.slurm.hooks = {"submit": third}
    done = user.run("--nodes", "1,2,4")
    assert done.code == 130
    assert "[sweep.interrupted]" in done.err
    assert "1 of 3 jobs" in done.err
    user.slurm.hooks = {"submit": interrupt}
    assert user.run().code == 130
    user.slurm.hooks = {}
    assert user.run().code == 0
    assert len(user.slurm.submitted) == 3


def test_ctrl_c_before_anything_is_promised(user: SweepUser) -> None:
    user.slurm.hooks = {"prepare": interrupt}
    done = user.run("--nodes", "1")
    assert done.code == 130
    assert "[sweep.interrupted]" in done.err
    assert user.left() == []


def test_a_submit_that_fails_is_gone_on_with(user: SweepUser) -> None:
    def silent(_stage: str) -> None:
        if user.slurm.submitted:
            raise UserError("the cluster of stack test did not answer within 90 s", code="cluster.no-answer")

    user.slurm.hooks = {"sbatch": silent}
    done = user.run("--nodes", "1,2")
    assert done.code == 1
    assert "[sweep.not-told]" in done.err
    assert "0 of 2 jobs are submitted; `./cluster run --stack test`" in done.err
    user.slurm.hooks = {}
    assert user.run().code == 0
    assert len(user.slurm.submitted) == len(set(user.slurm.submitted)) == 2


@pytest.mark.parametrize("arguments", [(), ("--nodes", "2,1", "--repeat", "2")], ids=["none", "the same"])
def test_without_arguments_or_with_the_same_it_watches_on(
    user: SweepUser, arguments: tuple[str, ...]
) -> None:
    user.cut_off("--nodes", "1,2", "--repeat", "2")
    assert user.run(*arguments).code == 0
    assert len(user.slurm.submitted) == 4


@pytest.mark.parametrize("arguments", [("--nodes", "1,2"), ("--nodes", "1"), ("--repeat", "2")])
def test_other_arguments_are_refused_and_both_ways_named(user: SweepUser, arguments: tuple[str, ...]) -> None:
    user.cut_off("--nodes", "1,2", "--repeat", "2")
    done = user.run(*arguments)
    assert done.code == 3
    assert "[sweep.other-under-way]" in done.err
    for named in ("--nodes 1,2 --repeat 2", "`./cluster run --stack test`", "`./cluster run --cancel "):
        assert named in done.err
    assert len(user.slurm.submitted) == 4
    assert user.left() != []


def test_a_sweep_ends_as_it_began_whatever_the_checkout_says_by_then(user: SweepUser) -> None:
    user.cut_off("--nodes", "1,2")
    (user.project / "workload" / "train.py").write_text("another training")
    (user.project / "Pulumi.test.yaml").write_text(STACK.replace("{epochs: 1}", "{enabled: false}"))
    done = user.run()
    assert done.code == 0
    assert "has changed since: the sweep goes on with the old ones" in done.err
    assert len(user.kept()) == 2


def test_a_cluster_that_is_silent_for_a_while_loses_nothing(user: SweepUser) -> None:
    def silent(_stage: str) -> None:
        if 3 <= user.slurm.looks < 6:
            user.slurm.looks += 1
            raise UserError("first line\nno route to the login machine", code="ssh.unreachable")

    user.slurm.hooks = {"show": silent}
    done = user.run("--nodes", "1,2")
    assert done.code == 0
    assert done.err.count("the cluster does not answer: no route to the login machine; trying for") == 1
    assert "the cluster answers again" in done.err
    assert len(user.kept()) == 2


def test_a_cluster_that_stays_silent_is_given_up_and_nothing_is_lost(
    user: SweepUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_stage: str) -> None:
        if user.slurm.looks == 3:
            raise UserError("no route to the login machine", code="ssh.unreachable")

    monkeypatch.setattr(watch, "PATIENCE_SECONDS", 0.2)
    user.slurm.hooks = {"show": silent}
    done = user.run("--nodes", "1,2")
    assert done.code == 1
    assert "[sweep.silent]" in done.err
    assert "no route to the login machine" in done.err
    assert "`./cluster run --stack test`" in done.err
    assert len(user.kept()) == 1
    user.slurm.hooks = {}
    assert user.run().code == 0
    assert len(user.kept()) == len(user.slurm.submitted) == 2


def test_results_that_cannot_be_kept_stay_on_the_cluster(
    user: SweepUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: Any) -> Path:
        raise OSError(28, "No space left on device", "/state/results/test/x.json")

    with monkeypatch.context() as patched:
        patched.setattr(results, "keep", full)
        done = user.run("--nodes", "1,2")
    assert done.code == 1
    assert "[sweep.not-watched]" in done.err
    assert "/state/results/test/x.json: " in done.err
    assert "`./cluster run --stack test`" in done.err
    assert user.run().code == 0
    assert len(user.kept()) == 2


def test_a_label_of_another_release_is_named(user: SweepUser) -> None:
    user.cut_off("--nodes", "1,2")
    file = Path(user.left()[0]) / "sweep.json"
    whole = file.read_text()
    for text in ("{", "[]", '{"id": 3}', whole.replace('"repeat"', '"again"')):
        file.write_text(text)
        for arguments in ((), ("--nodes", "1,2"), ("--cancel",)):
            done = user.run(*arguments)
            assert done.code == 3
            assert "[sweep.plan-version]" in done.err
            assert str(file.parent) in done.err
    file.write_text(whole)
    assert user.run().code == 0


def test_two_that_begin_the_same_at_once_have_one_sweep(user: SweepUser) -> None:
    """The second command does all of its work between two calls of the first."""

    def second(stage: str) -> None:
        user.slurm.hooks = {"show": die}
        with pytest.raises(Killed):
            LocalProvider().run(described(user), Console(), Runs(nodes="1,2"))
        user.slurm.hooks = {}

    for stage in ("opened", "prepared", "submit", "submitted"):
        user.slurm.hooks = {stage: second}
        before = len(user.slurm.submitted)
        assert user.run("--nodes", "1,2").code == 0
        assert len(user.slurm.submitted) == len(set(user.slurm.submitted)) == before + 2
    assert len(user.kept()) == 8


def test_two_that_begin_others_at_once_end_both(user: SweepUser) -> None:
    def second(_stage: str) -> None:
        user.slurm.hooks = {"show": die}
        with pytest.raises(Killed):
            LocalProvider().run(described(user), Console(), Runs(nodes="4"))
        user.slurm.hooks = {}

    user.slurm.hooks = {"opened": second}
    assert user.run("--nodes", "1,2").code == 0
    assert user.run().err.startswith("going on with --nodes 4 of ")
    assert sorted(nodes for nodes, _ in user.kept()) == [1, 2, 4]
    assert user.left() == []


def test_a_cancel_between_two_submits_leaves_no_job(user: SweepUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BATCH", 1)

    def second(_stage: str) -> None:
        if len(user.slurm.submitted) == 2:
            user.slurm.hooks, user.slurm.stuck = {}, True
            LocalProvider().cancel(described(user), Console())

    user.slurm.hooks = {"submit": second}
    done = user.run("--nodes", "1", "--repeat", "4")
    assert done.code == 1
    assert "[sweep.cancelled]" in done.err
    assert user.slurm.jobs("CANCELLED") == [1, 2]
    assert len(user.slurm.submitted) == 2


def test_two_that_watch_keep_each_result_once_and_both_end(
    user: SweepUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second command begins and ends while the first one watches."""

    def second(_stage: str) -> None:
        if user.slurm.looks == 3:
            user.slurm.hooks = {}
            LocalProvider().run(described(user), Console(), Runs())

    user.slurm.hooks = {"show": second}
    done = user.run("--nodes", "1,2", "--repeat", "2")
    assert done.code == 0
    assert len(user.kept()) == len(user.slurm.submitted) == 4
    assert user.left() == []


# --- cancelled, or ended with its cluster ------------------------------------------------------------------


def test_cancel_ends_the_jobs_keeps_results_and_forgets(user: SweepUser) -> None:
    user.cut_off("--nodes", "1,2", "--repeat", "2")
    for _ in range(3):
        user.slurm._go_on()  # one is done, the second runs
    user.slurm.stuck = True
    done = user.run("--cancel")
    assert (done.code, done.err) == (0, "3 jobs ended; 1 of 4 results kept\n")
    assert user.slurm.jobs("CANCELLED") == [2, 3, 4]
    assert user.kept() == [(1, 1)]
    assert user.left() == []
    again = user.run("--cancel")
    assert (again.code, again.err) == (0, "no sweep of stack test is under way\n")


def test_cancel_finds_jobs_whose_submit_was_cut_off(user: SweepUser) -> None:
    user.slurm.hooks = {"sbatched": die}
    assert user.run("--nodes", "1,2").code == -9
    user.slurm.hooks = {}
    user.slurm.stuck = True
    assert user.run("--cancel").err == "1 job ended; 0 of 2 results kept\n"
    assert user.slurm.jobs("CANCELLED") == [1]


def test_cancel_of_a_plan_of_which_nothing_was_submitted(user: SweepUser) -> None:
    user.slurm.hooks = {"sbatch": die}
    assert user.run("--nodes", "1,2").code == -9
    user.slurm.hooks = {}
    assert user.run("--cancel").err == "0 jobs ended; 0 of 2 results kept\n"
    assert user.left() == []


def test_a_cancel_that_finds_nobody_changes_nothing(user: SweepUser) -> None:
    user.cut_off("--nodes", "1")

    def silent(_stage: str) -> None:
        raise UserError("no route to the login machine", code="ssh.unreachable")

    user.slurm.hooks = {"cancel": silent}
    done = user.run("--cancel")
    assert (done.code, done.err) == (1, "no route to the login machine [ssh.unreachable]\n")
    assert user.left() != []


def test_who_watches_is_told_of_another_ones_cancel(user: SweepUser) -> None:
    def second(_stage: str) -> None:
        if user.slurm.looks == 3:
            user.slurm.hooks, user.slurm.stuck = {}, True
            LocalProvider().cancel(described(user), Console())

    user.slurm.hooks = {"show": second}
    done = user.run("--nodes", "1,2")
    assert done.code == 1
    assert "[sweep.cancelled]" in done.err
    assert "1 of 2 results kept" in done.err


@pytest.mark.parametrize("how", ["down", "another"])
def test_a_sweep_ends_with_its_cluster(user: SweepUser, how: str) -> None:
    def gone(_stage: str) -> None:
        if user.slurm.looks == 3:
            user.slurm.renew()
            user.slurm.up = how == "another"

    user.slurm.hooks = {"show": gone}
    done = user.run("--nodes", "1,2")
    assert done.code == 1
    assert "[sweep.gone]" in done.err
    assert "1 of 2 results kept" in done.err
    assert user.left() == []
    assert len(user.kept()) == 1


@pytest.mark.parametrize("arguments", [(), ("--nodes", "1,2"), ("--nodes", "1"), ("--cancel",)])
def test_an_unfinished_sweep_ends_with_its_cluster(user: SweepUser, arguments: tuple[str, ...]) -> None:
    user.cut_off("--nodes", "1,2")
    user.slurm.renew()
    user.slurm.up = False
    done = user.run(*arguments)
    assert done.code == 1
    assert "[cluster.not-up]" in done.err
    user.slurm.up = True
    assert user.left() == []
    begun = len(user.slurm.submitted)
    done = user.run(*arguments)
    assert done.code == 0
    new = 0 if "--cancel" in arguments else len(arguments[1].split(",")) if arguments else 3
    assert len(user.slurm.submitted) - begun == len(user.kept()) == new


def test_numbers_that_another_cluster_gave_to_others_are_not_taken_for_ours(user: SweepUser) -> None:
    """Storage that outlives its cluster has the run's folder; that job number belongs to another user."""
    user.cut_off("--nodes", "1,2")
    user.slurm.stuck = True
    user.slurm.control.queue = {number: job(number, comment="somebody's") for number in (1, 2)}
    done = user.run()
    assert done.code == 1
    assert done.err.count("ended without a result (Slurm no longer knows how)") >= 2
    assert user.slurm.jobs("RUNNING") == [1, 2], "whose they are they stay"
