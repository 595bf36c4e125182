"""Without the Pulumi CLI: verbs run in order, each is listed, and `up` or `down` goes on after any end."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pulumi
import pytest

from cli.console.events import ResourceFailed
from infra.errors import UserError
from tests.support import sentences
from tests.support.checkout import until
from tests.support.tiny_project import Tiny, lives, make
from tests.support.wide import wide


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    return make(tmp_path, monkeypatch)


def wait_for(path: Path) -> None:
    until(path.exists, 60, f"{path}", 0.01)


def wait_for_text(path: Path) -> str:
    """Wait until a file has content. It exists a moment before it has any."""
    return str(until(lambda: path.exists() and path.read_text(), 60, f"a word in {path}", 0.01))


def gone(pid: int) -> bool:
    until(lambda: not lives(pid), 60, f"the end of {pid}", 0.01)
    return True


# --- what runs, and in which order -----------------------------------------------------------------------


def test_up_creates_in_the_order_of_dependencies_and_records_the_outputs(tiny: Tiny) -> None:
    tiny.write("""
        class Part(pulumi.ComponentResource):
            def __init__(self, name):
                super().__init__("slurm-stacks:index:Part", name)
                own = ResourceOptions(parent=self)
                self.first = Command(name + "-first", create="echo one; echo two", opts=own)
                self.second = Command(name + "-second", create=self.first.stdout.apply(
                    lambda text: f"echo {text.splitlines()[1]}-and-more"), opts=own)
                self.register_outputs({})
        part = Part("part")
        pulumi.export("text", part.second.stdout)
        pulumi.export("object", {"list": [1, 2.5, True, None], "nested": {"a": part.first.stdout}})
    """)
    run = tiny.up()
    assert run.outputs == {
        "text": "two-and-more",
        "object": {"list": [1, 2.5, True, None], "nested": {"a": "one\ntwo"}},
    }
    assert run.counts == {"created": 2}
    assert tiny.engine.outputs() == run.outputs
    urns = [*json.loads(tiny.state_file.read_text())["made"]]
    part = "urn:pulumi:t::tiny::slurm-stacks:index:Part$command:local:Command::part"
    assert urns == [f"{part}-first", f"{part}-second"]


def test_a_second_up_runs_nothing(tiny: Tiny) -> None:
    tiny.write("""
        a = command("a")
        command("b", environment={"A": a.stdout}, triggers=[1, {"x": [True]}], opts={"depends_on": [a]})
        pulumi.export("a", a.stdout)
    """)
    first = tiny.up()
    assert tiny.words == ["a+", "b+"]
    second = tiny.up()
    assert tiny.words == []
    assert second.counts == {"unchanged": 2}
    assert not second.summary.changed
    assert second.outputs == first.outputs


def test_a_changed_input_runs_update_or_else_create(tiny: Tiny) -> None:
    program = """
        value = config.require("value")
        command("with", update=say("with~"), stdin=value)
        command("without", environment={"V": value}, delete=say(f"without-{value}"))
    """
    tiny.write(program, "config: {value: '1'}").up()
    assert sorted(tiny.words) == ["with+", "without+"]
    ids = {name: made["id"] for name, made in tiny.made.items()}
    run = tiny.write(program, "config: {value: '2'}").up()
    assert run.operations == {"with": "updated", "without": "updated"}
    assert sorted(tiny.words) == ["without+", "with~"]
    assert {name: made["id"] for name, made in tiny.made.items()} == ids, "they are the same ones"
    tiny.destroy()
    assert sorted(tiny.words) == ["with-", "without-2"]


def test_other_triggers_make_another_one_and_the_former_is_deleted_first(tiny: Tiny) -> None:
    program = """
        run = config.require("run")
        a = command("a", create=say(f"{run}+"), delete=say(f"{run}-"), triggers=[run])
        command("user", update=say("user~"), environment={"ID": a.id})
    """
    tiny.write(program, "config: {run: one}").up()
    assert tiny.words == ["one+", "user+"]
    run = tiny.write(program, "config: {run: two}").up()
    assert run.operations == {"a": "replaced", "user": "updated"}
    assert tiny.words == ["one-", "two+", "user~"]
    tiny.destroy()
    assert tiny.words == ["user-", "two-"]


def test_what_is_made_later_for_an_older_one_is_deleted_after_it(tiny: Tiny) -> None:
    tiny.write('command("gone", opts={"depends_on": [command("old")]})').up()
    tiny.write("""
        late = command("late")
        command("old", update=say("old~"), environment={"ID": late.id})
    """).up()
    assert tiny.words == ["old+", "gone+", "late+", "old~", "gone-"]
    tiny.destroy()
    assert tiny.words == ["old-", "late-"]


BENCHMARK = """
    from infra.program import mode

    class Benchmark(pulumi.ComponentResource):
        def __init__(self, name, run):
            super().__init__(mode.COMPONENT, name)
            command(name + "-job", create=say("submit"), delete=say("cancel"), triggers=[run],
                    opts={"parent": self})

    kept, run = mode.kept_benchmark(), config.require("run")
    command("head", create=say("head+"), update=say("head~"), stdin=config.require("head"))
    if kept is None:
        Benchmark("training", run)
        pulumi.export("benchmark_result", "/result" + run)
    elif "benchmark_result" in kept:
        pulumi.export("benchmark_result", kept["benchmark_result"])
"""


def test_a_benchmark_that_runs_is_left_as_it_is(tiny: Tiny) -> None:
    def up(head: str, run: str, *, benchmark: bool = True) -> list[str]:
        outputs = (
            tiny.write(BENCHMARK, f"config: {{head: {head}, run: '{run}'}}").up(benchmark=benchmark).outputs
        )
        assert outputs == tiny.engine.outputs()
        return [*tiny.words, *(outputs or {}).values()]

    assert up("x", "1", benchmark=False) == ["head+"]
    assert up("x", "1") == ["submit", "/result1"]
    # Everything else changes. A change of the workload meanwhile is ignored.
    assert up("y", "2", benchmark=False) == ["head~", "/result1"], "neither cancelled nor submitted anew"
    assert up("y", "1") == ["/result1"], "for the next one nothing has changed"
    assert up("y", "2") == ["cancel", "submit", "/result2"]
    tiny.destroy()


def test_destroy_goes_against_the_dependencies_and_leaves_nothing(tiny: Tiny) -> None:
    tiny.write("""
        a = command("a")
        b = command("b", opts={"depends_on": [a]})
        c = command("c", environment={"B": b.stdout})
        command("child", opts={"parent": c})
    """).up()
    assert tiny.words == ["a+", "b+", "c+", "child+"]
    run = tiny.destroy()
    assert tiny.words == ["child-", "c-", "b-", "a-"]
    assert run.counts == {"deleted": 4}
    assert tiny.engine.outputs() is None
    assert not tiny.state_file.parent.exists()
    assert not tiny.run_root.exists()
    assert tiny.destroy().counts == {}
    assert tiny.words == []


def test_destroy_needs_neither_the_program_nor_the_stack_file(tiny: Tiny) -> None:
    tiny.write("command('a')").up()
    for path in tiny.path.glob("[!.]*"):
        path.unlink()
    tiny.destroy()
    assert tiny.words == ["a+", "a-"]


def test_what_vanishes_from_the_program_is_deleted_after_the_rest(tiny: Tiny) -> None:
    tiny.write("""
        a = command("a")
        b = command("b", opts={"depends_on": [a]})
        command("c", opts={"depends_on": [b]})
    """).up()
    assert len(tiny.words) == 3
    run = tiny.write("command('d')").up()
    assert tiny.words == ["d+", "c-", "b-", "a-"]
    assert run.counts == {"created": 1, "deleted": 3}
    assert set(tiny.made) == {"d"}


def test_deleted_with_spares_the_command_only_if_the_other_goes_too(tiny: Tiny) -> None:
    program = """
        host = command("host")
        if config.get_bool("job"):
            command("job", opts={"deleted_with": host})
    """
    tiny.write(program, "config: {job: true}").up()
    tiny.write(program).up()
    assert tiny.words == ["host+", "job+", "job-"]
    tiny.write(program, "config: {job: true}").up()
    tiny.destroy()
    assert tiny.words == ["job+", "host-"]


def test_a_command_gets_its_environment_and_input_in_the_projects_folder(tiny: Tiny) -> None:
    run = tiny.write("""
        a = Command("a", create="pwd; cat; echo $WORD; echo err >&2", stdin="some\\ninput\\n",
                    environment={"WORD": "here"})
        b = Command("b", create="cat")
        pulumi.export("texts", [a.stdout, a.stderr, b.stdout])
    """).up()
    assert run.outputs == {"texts": [f"{tiny.path}\nsome\ninput\nhere", "err", ""]}
    assert sorted(run.lines) == sorted([str(tiny.path), "some", "input", "here", "err"])


def test_independent_commands_run_at_the_same_time(tiny: Tiny) -> None:
    # Each command waits for a file that the other one makes, so they must run in parallel.
    tiny.write("""
        for one, two in (("a", "b"), ("b", "a")):
            Command(one, create=f"touch '{LOG}.{one}'; while ! [ -e '{LOG}.{two}' ]; do sleep 0.01; done")
    """)
    assert tiny.up().counts == {"created": 2}


def test_the_async_entrypoint_of_the_sdk_works(tiny: Tiny) -> None:
    run = tiny.write("""
        import asyncio
        async def main():
            await asyncio.sleep(0)
            return {"late": command("a", create="echo late").stdout}
        pulumi.run(main)
    """).up()
    assert run.outputs == {"late": "late"}


def test_a_run_leaves_the_process_as_it_was(tiny: Tiny) -> None:
    before = Path.cwd(), list(sys.path), pulumi.get_project(), pulumi.runtime.get_root_resource()
    tiny.write("command('a')").up()
    after = Path.cwd(), list(sys.path), pulumi.get_project(), pulumi.runtime.get_root_resource()
    assert after == before


def test_the_state_is_readable_by_its_owner_alone(tiny: Tiny) -> None:
    tiny.write("command('a')").up()
    assert tiny.state_file.stat().st_mode & 0o777 == 0o600
    assert tiny.state_file.parent.stat().st_mode & 0o777 == 0o700
    assert json.loads(tiny.state_file.read_text())["version"] == 2


# --- what fails, is killed or is interrupted -------------------------------------------------------------


def test_a_failure_stops_what_depends_on_it_and_nothing_else(tiny: Tiny) -> None:
    program = """
        bad = command("bad", create="echo working; echo 'no such thing' >&2; " + config.require("end"))
        command("after", opts={"depends_on": [bad]})
        command("uses", environment={"X": bad.stdout})
        other = command("other", create="sleep 0.3; " + say("other+"))
        command("another", opts={"depends_on": [other]})
        pulumi.export("other", other.stdout)
        pulumi.export("bad", bad.stdout)
    """
    tiny.write(program, "config: {end: exit 7}")
    with sentences.raises("runner.resources-failed", "exit status 7") as raised:
        tiny.up()
    assert raised.value.exit_code == 1
    assert tiny.words == ["other+", "another+"]
    assert tiny.last.counts == {"created": 2}
    assert tiny.last.summary.failed == 1
    assert [e.name for e in tiny.events if isinstance(e, ResourceFailed)] == ["bad"]
    assert tiny.engine.outputs() == {"other": ""}

    run = tiny.write(program, "config: {end: exit 0}").up()
    assert run.counts == {"unchanged": 2, "created": 3}
    assert sorted(tiny.words) == ["after+", "uses+"]
    assert run.outputs == {"other": "", "bad": "working"}


def test_a_failed_run_deletes_nothing_that_vanished(tiny: Tiny) -> None:
    tiny.write("command('a')").up()
    with sentences.raises("runner.resources-failed"):
        tiny.write("command('b', create='false')").up()
    assert tiny.words == ["a+"]
    assert set(tiny.made) == {"a", "b"}


def test_a_failed_update_is_done_again_even_if_the_change_is_taken_back(tiny: Tiny) -> None:
    program = "command('a', update=say('a~') + '; ' + config.require('end'), stdin=config.require('end'))"
    tiny.write(program, "config: {end: 'true'}").up()
    with sentences.raises("runner.resources-failed"):
        tiny.write(program, "config: {end: 'false'}").up()
    tiny.write(program, "config: {end: 'true'}").up()
    assert tiny.words == ["a+", "a~", "a~"]
    assert tiny.up().counts == {"unchanged": 1}


def test_a_failed_delete_keeps_what_it_needs_and_can_be_tried_again(tiny: Tiny) -> None:
    tiny.write("""
        a = command("a")
        b = command("b", delete=f"test -e '{LOG}.now' && {say('b-')}", opts={"depends_on": [a]})
        command("c", opts={"depends_on": [b]})
    """).up()
    assert tiny.words == ["a+", "b+", "c+"]
    for _ in range(2):
        with sentences.raises("runner.resources-failed"):
            tiny.destroy()
        assert set(tiny.made) == {"a", "b"}
    tiny.log.with_name("log.now").touch()
    tiny.destroy()
    assert tiny.words == ["c-", "b-", "a-"]
    assert not tiny.state_file.exists()


def test_up_after_an_interrupted_destroy_creates_what_was_half_deleted(tiny: Tiny) -> None:
    tiny.write("command('a', delete='exit 3')").up()
    with sentences.raises("runner.resources-failed"):
        tiny.destroy()
    assert tiny.up().operations == {"a": "created"}
    assert tiny.words == ["a+", "a+"]


def test_an_unfinished_replacement_is_finished_before_its_successor_begins(tiny: Tiny) -> None:
    """After Ctrl-C, or a failure, while the old one was deleted. Its job would run on beside the new one."""
    delete = f"test -e '{tiny.log}.now'"
    program = f"""
        command("a", triggers=[config.require("t")], delete={delete!r} + " && " + say("a-"))
    """
    tiny.write(program, "config: {t: '1'}").up()
    tiny.write(program, "config: {t: '2'}")
    for _ in range(2):
        with sentences.raises("runner.resources-failed"):
            tiny.up()
        assert not tiny.made["a"]["whole"]
    assert tiny.words == ["a+"]
    tiny.log.with_name("log.now").touch()
    assert tiny.up().operations == {"a": "replaced"}
    assert tiny.words == ["a-", "a+"]
    assert tiny.up().counts == {"unchanged": 1}


@pytest.mark.parametrize("verb", ["up", "destroy"])
def test_after_kill_9_in_mid_create_a_run_goes_on(tiny: Tiny, verb: str) -> None:
    tiny.write("""
        first = command("first")
        # Only the first attempt hangs.
        slow = command("slow", create=f"echo $$ >> '{LOG}.pids'; [ $(wc -l < '{LOG}.pids') = 2 ] || sleep 99;"
                       + say("slow+"), opts={"depends_on": [first]})
        command("last", opts={"depends_on": [slow]})
    """)
    pids = tiny.log.with_name("log.pids")
    with tiny.process("up") as running:
        wait_for_text(pids)
        until(lambda: tiny.made["slow"]["process"], 60, "the note of it", 0.01)
        running.kill()
        running.wait()
    (pid,) = map(int, pids.read_text().split())
    assert lives(pid), "the command outlives the kill: the case to be handled"
    assert not tiny.made["slow"]["whole"]
    assert tiny.words == ["first+"]
    if verb == "up":
        run = tiny.up()
        assert run.operations == {"first": "unchanged", "slow": "created", "last": "created"}
        assert tiny.words == ["slow+", "last+"]
        assert "ended the command that a killed run left behind" in run.messages
        assert tiny.up().counts == {"unchanged": 3}
    else:
        tiny.destroy()
        assert tiny.words == ["slow-", "first-"]
        assert not tiny.state_file.exists()
    assert gone(pid)


def test_ctrl_c_reaches_the_commands_and_leaves_a_state_to_go_on_from(tiny: Tiny) -> None:
    tiny.write("""
        first = command("first")
        slow = command("slow", create=f"trap '{say('slow!')}; exit 1' INT; touch '{LOG}.started';"
                       f"while ! [ -e '{LOG}.go' ]; do sleep 0.05; done",
                       opts={"depends_on": [first]})
        command("last", opts={"depends_on": [slow]})
    """)
    with tiny.process("up") as running:
        wait_for(tiny.log.with_name("log.started"))
        running.send_signal(signal.SIGINT)
        out, error = running.communicate(timeout=120)
    assert running.returncode == 1
    assert "UserError: interrupted" in error
    assert "interrupted: waiting" in out
    assert tiny.words == ["first+", "slow!"]
    tiny.log.with_name("log.go").touch()
    assert tiny.up().operations == {"first": "unchanged", "slow": "created", "last": "created"}


def test_a_second_ctrl_c_kills_what_ignores_the_first(tiny: Tiny) -> None:
    tiny.write("""
        write = f"echo $$ > '{LOG}.new'; mv '{LOG}.new' '{LOG}.pid'"
        command("deaf", create=f"trap '' INT; {write}; sleep 300")
    """)
    with tiny.process("up", grace=600.0) as running:
        wait_for(tiny.log.with_name("log.pid"))
        running.send_signal(signal.SIGINT)
        assert running.stdout is not None
        # readline() would return empty lines forever if the run ended without this line.
        assert any("interrupted" in line for line in running.stdout), running.communicate()
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=120)
    assert running.returncode == 1
    assert gone(int(tiny.log.with_name("log.pid").read_text()))


def test_a_daemon_that_keeps_the_pipes_open_does_not_hang_the_run(tiny: Tiny) -> None:
    tiny.write("""
        a = command("a", create=f"(sleep 300; echo late) & echo $! > '{LOG}.pid'; echo early",
                    delete=f"kill $(cat '{LOG}.pid')")
        pulumi.export("text", a.stdout)
    """)
    run = tiny.up()
    assert run.outputs == {"text": "early"}
    pid = int(tiny.log.with_name("log.pid").read_text())
    assert lives(pid), "what a command leaves running must go on running"
    tiny.destroy()
    assert gone(pid)


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ("environment={'LONG': 'x' * 2**18}", "Argument list too long"),
        ("create='kill -9 $$'", "signal 9"),
    ],
)
def test_failures_to_run_are_named(tiny: Tiny, inputs: str, named: str) -> None:
    with sentences.raises("runner.resources-failed", named):
        tiny.write(f"command('a', **dict({inputs}))").up()


def test_a_mistake_in_the_program_is_shown_with_its_place(tiny: Tiny) -> None:
    with sentences.raises("program.failed", "ZeroDivisionError", "__main__.py"):
        tiny.write("1 / 0").up()
    with sentences.raises("program.failed", "KeyError: 'nothing'"):
        tiny.write("command('a').stdout.apply(lambda text: {}['nothing'])").up()
    with sentences.raises("program.failed", "tiny:x"):
        tiny.write("config.require('x')").up()
    with sentences.raises("program.urn-twice", "urn:pulumi:t::tiny::command:local:Command::a"):
        tiny.write("command('a'); command('a')").up()


def test_a_program_that_fails_at_once_claims_nothing(tiny: Tiny) -> None:
    with pytest.raises(UserError):
        tiny.write("1 / 0").up()
    assert not tiny.run_root.exists()
    assert not tiny.state_file.parent.exists()
    assert tiny.engine.outputs() is None


@pytest.mark.parametrize("loss", ["run directory", "reboot"])
def test_after_a_reboot_everything_is_created_again(tiny: Tiny, loss: str) -> None:
    tiny.write("command('b', opts={'depends_on': [command('a')]})").up()
    if loss == "reboot":
        state = json.loads(tiny.state_file.read_text())
        tiny.state_file.write_text(json.dumps({**state, "boot": "another"}))
    else:
        shutil.rmtree(tiny.run_root)
    run = tiny.up()
    assert tiny.words == ["a+", "b+", "a+", "b+"]
    assert "all of it is created again" in run.messages
    assert tiny.up().counts == {"unchanged": 2}


@pytest.mark.parametrize(
    ("text", "code"),
    [*((text, "state.damaged") for text in ("{", "{}", "[]")), ('{"version": 99}', "state.version")],
)
def test_a_damaged_state_is_named_and_not_overwritten(tiny: Tiny, text: str, code: str) -> None:
    tiny.write("command('a')").up()
    tiny.state_file.write_text(text)
    for operation in (tiny.up, tiny.destroy):
        with sentences.raises(code, "state.json"):
            operation()
    assert tiny.state_file.read_text() == text


def test_a_command_may_print_more_than_a_pipe_or_a_variable_holds(tiny: Tiny) -> None:
    run = tiny.write("""
        a = command("a", create="for i in $(seq 3000); do echo out-$i-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; "
                                "echo err-$i-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx >&2; done")
        pulumi.export("n", pulumi.Output.all(a.stdout, a.stderr).apply(
            lambda both: [len(text.splitlines()) for text in both]))
    """).up()
    assert run.outputs == {"n": [3000, 3000]}
    # The value exceeds the kernel's limit of a variable (128 KiB). The delete command must still start.
    assert len(tiny.made["a"]["outputs"]["stdout"]) > 2**17
    tiny.destroy()
    assert tiny.words == ["a-"]


FORMER = {
    "urn": "urn:pulumi:t::tiny::command:local:Command::a",
    "type": "command:local:Command",
    "name": "a",
    "custom": True,
    "parent": "urn:pulumi:t::tiny::pulumi:pulumi:Stack::tiny-t",
    "id": "a12345678",
    "status": "created",
    "outputs": {"stdout": "out", "stderr": ""},
    "dependencies": [],
    "property_dependencies": {},
    "deleted_with": "",
    "process": None,
}
"""What the version before this one recorded of a command, without its inputs."""


@pytest.mark.parametrize("status", ["created", "creating"])
def test_a_stack_of_the_former_version_goes_on_and_can_be_taken_down(tiny: Tiny, status: str) -> None:
    program = "pulumi.export('seen', command('a').stdout)"
    tiny.write(program).up()
    assert tiny.words == ["a+"]
    state = json.loads(tiny.state_file.read_text())
    (listed,) = state.pop("made").values()
    root = {**FORMER, "urn": FORMER["parent"], "type": "pulumi:pulumi:Stack", "custom": False, "inputs": {}}
    resources = [root, {**FORMER, "status": status, "inputs": listed["inputs"]}]
    former = {**state, "version": 1, "project": "tiny", "stack": "t", "resources": resources, "to_delete": []}
    tiny.state_file.write_text(json.dumps(former))
    if status == "created":
        run = tiny.up()
        assert (run.counts, run.outputs, tiny.words) == ({"unchanged": 1}, {"seen": "out"}, [])
        assert tiny.made["a"]["id"] == "a12345678"
    tiny.destroy()
    assert tiny.words == ["a-"]
    assert not tiny.state_file.exists()


STEPS = {
    "clusters._read": "before the cluster is recorded",
    "pathlib.Path.replace": "the draft of the id is complete",
    "clusters._write": "before the record is written",
    "folders._make_private": "it is recorded",
    "owner.read": "before the claim is looked at",
    "os.link": "the owner's draft is complete",
    "program_of_the_stack": "it is claimed",
}
"""What a run does before its first command -> what is there by then."""
UP_AND_DESTROY, DESTROY = ["up", "destroy"], ["destroy"]
# A destroy alone meets the same files; the first, one in the midst and the last step stand for the others.
ALONE = ("clusters._read", "folders._make_private", "program_of_the_stack")


@pytest.mark.parametrize(
    ("step", "verbs"),
    [
        *((step, UP_AND_DESTROY) for step in STEPS),
        *((step, DESTROY) for step in ALONE),
        *wide(*((step, DESTROY) for step in STEPS if step not in ALONE)),
    ],
)
def test_a_kill_while_the_cluster_is_claimed_leaves_no_file(tiny: Tiny, step: str, verbs: list[str]) -> None:
    killed = "import os, pathlib, signal\nfrom infra.program import clusters, folders, owner\n"
    if step == "program_of_the_stack":
        tiny.write("import os; os.kill(os.getpid(), 9)")
    else:
        tiny.write("command('a')")
        killed += f"{step} = lambda *args, **named: os.kill(os.getpid(), signal.SIGKILL)\n"
    with tiny.process("up", before=killed) as running:
        running.communicate(timeout=120)
    assert running.returncode == -signal.SIGKILL
    tiny.write("command('a')")
    for verb in verbs:
        getattr(tiny, verb)()
    assert not tiny.run_root.exists()
    assert not tiny.state_file.parent.exists()


@pytest.mark.parametrize("seed", [1, *wide(2)])
def test_after_any_history_of_kills_one_up_and_one_destroy_set_things_right(tiny: Tiny, seed: int) -> None:
    program = """
        value = config.require("value")

        def thing(name, **inputs):
            file = f"'{LOG}.d/{name}'"
            return Command(name, create=f"mkdir -p '{LOG}.d'; sleep 0.04; echo $$ > {file}; sleep 0.04",
                           delete=f"sleep 0.03; rm -f {file}; sleep 0.03", **inputs)

        a = thing("a")
        b = thing("b", triggers=[value], opts=ResourceOptions(depends_on=[a], delete_before_replace=True))
        c = thing("c", environment={"B": b.id, "V": value})
        thing("d", opts=ResourceOptions(depends_on=[a, c]))
    """
    chance = random.Random(seed)
    for _ in range(8):
        tiny.write(program, f"config: {{value: '{chance.randint(0, 3)}'}}")
        with tiny.process(chance.choice(["up", "up", "destroy"])) as running:
            try:
                _, error = running.communicate(timeout=chance.uniform(0.3, 0.8))
                assert running.returncode == 0, error
            except subprocess.TimeoutExpired:
                running.send_signal(chance.choice([signal.SIGKILL, signal.SIGINT]))
                running.communicate(timeout=120)
    made = tiny.log.with_name("log.d")
    tiny.up()
    assert sorted(path.name for path in made.iterdir()) == ["a", "b", "c", "d"]
    assert tiny.up().counts == {"unchanged": 4}
    tiny.destroy()
    assert list(made.iterdir()) == []
    assert not tiny.run_root.exists()
    assert not tiny.state_file.parent.exists()
