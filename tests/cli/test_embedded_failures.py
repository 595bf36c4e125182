"""The embedded runner when commands fail, are killed, hang or are interrupted."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from cli.console.events import ResourceFailed
from cli.engine import embedded
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
    assert tiny.last.counts == {"created": 3}
    assert tiny.last.summary.failed == 1
    assert [e.name for e in tiny.events if isinstance(e, ResourceFailed)] == ["bad"]
    assert embedded.outputs(tiny.stack) == {"other": ""}

    run = tiny.write(program, "config: {end: exit 0}").up()
    assert run.counts == {"unchanged": 3, "created": 3}
    assert sorted(tiny.words) == ["after+", "uses+"]
    assert run.outputs == {"other": "", "bad": "working"}


def test_a_failed_run_deletes_nothing_that_vanished(tiny: Tiny) -> None:
    tiny.write("command('a')").up()
    with sentences.raises("runner.resources-failed"):
        tiny.write("command('b', create='false')").up()
    assert tiny.words == ["a+"]
    assert set(tiny.records) == {"tiny-t", "a", "b"}


def test_a_failed_update_is_done_again_even_if_the_change_is_taken_back(tiny: Tiny) -> None:
    program = "command('a', update=say('a~') + '; ' + config.require('end'), stdin=config.require('end'))"
    tiny.write(program, "config: {end: 'true'}").up()
    with sentences.raises("runner.resources-failed"):
        tiny.write(program, "config: {end: 'false'}").up()
    tiny.write(program, "config: {end: 'true'}").up()
    assert tiny.words == ["a+", "a~", "a~"]
    assert tiny.up().counts == {"unchanged": 2}


def test_a_failed_replacement_keeps_the_old_one_until_it_succeeds(tiny: Tiny) -> None:
    program = (
        "command('a', create=say('a+') + '; ' + config.require('end'), triggers=[config.require('end')])"
    )
    tiny.write(program, "config: {end: 'true'}").up()
    with sentences.raises("runner.resources-failed"):
        tiny.write(program, "config: {end: 'false'}").up()
    assert tiny.words == ["a+", "a+"]
    tiny.write(program, "config: {end: ':'}").up()
    assert tiny.words == ["a+", "a-"]
    tiny.destroy()
    assert tiny.words == ["a-"]


def test_a_failed_delete_keeps_what_it_needs_and_can_be_tried_again(tiny: Tiny) -> None:
    tiny.write("""
        a = command("a")
        command("b", delete=f"test -e '{LOG}.now'", opts={"depends_on": [a]})
        command("c")
    """).up()
    with sentences.raises("runner.resources-failed"):
        tiny.destroy()
    assert set(tiny.records) == {"tiny-t", "a", "b"}
    assert sorted(tiny.words) == ["a+", "b+", "c+", "c-"]
    tiny.log.with_name("log.now").touch()
    tiny.destroy()
    assert tiny.words == ["a-"]
    assert not tiny.state_file.exists()


def test_destroy_deletes_what_a_replacement_has_left(tiny: Tiny) -> None:
    """The replacement exists and the old resource could not be deleted: both belong to the stack."""
    delete = f"test -e '{tiny.log}.now'"
    program = f"command('a', triggers=[config.require('t')], delete={delete!r} + ' && ' + say('a-'))"
    tiny.write(program, "config: {t: '1'}").up()
    with sentences.raises("runner.resources-failed"):
        tiny.write(program, "config: {t: '2'}").up()
    assert tiny.words == ["a+", "a+"]
    tiny.log.with_name("log.now").touch()
    tiny.destroy()
    assert tiny.words == ["a-", "a-"]
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
        command("a", triggers=[config.require("t")], delete={delete!r} + " && " + say("a-"),
                opts={{"delete_before_replace": True}})
    """
    tiny.write(program, "config: {t: '1'}").up()
    tiny.write(program, "config: {t: '2'}")
    for _ in range(2):
        with sentences.raises("runner.resources-failed"):
            tiny.up()
        assert tiny.records["a"]["status"] == "deleting"
    assert tiny.words == ["a+"]
    tiny.log.with_name("log.now").touch()
    assert tiny.up().operations == {"a": "replaced"}
    assert tiny.words == ["a-", "a+"]
    assert tiny.up().counts == {"unchanged": 2}


def test_what_is_half_created_ends_before_another_one_takes_its_place(tiny: Tiny) -> None:
    program = """
        t = config.require("t")
        command("a", triggers=[t], create=f"[ {t} = 2 ] && " + say("a+"), delete=say("a-") + f"; [ {t} = 2 ]",
                opts={"delete_before_replace": True})
    """
    with pytest.raises(UserError):
        tiny.write(program, "config: {t: '1'}").up()
    run = tiny.write(program, "config: {t: '2'}").up()
    assert tiny.words == ["a-", "a+"]
    assert "a was only half created; deleting it: exit status 1" in run.messages
    assert tiny.up().counts == {"unchanged": 2}


def test_what_was_only_half_created_cannot_block_the_destroy(tiny: Tiny) -> None:
    tiny.write("command('a', create='false', delete=say('a-') + '; exit 5')")
    with pytest.raises(UserError):
        tiny.up()
    run = tiny.destroy()
    assert tiny.words == ["a-"]
    assert "a was only half created; deleting it: exit status 5" in run.messages
    assert not tiny.state_file.exists()


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
        until(lambda: tiny.records["slow"]["process"], 60, "the note of it", 0.01)
        running.kill()
        running.wait()
    (pid,) = map(int, pids.read_text().split())
    assert lives(pid), "the command outlives the kill: the case to be handled"
    assert tiny.records["slow"]["status"] == "creating"
    assert tiny.words == ["first+"]
    if verb == "up":
        run = tiny.up()
        assert run.operations == {"first": "unchanged", "slow": "created", "last": "created"}
        assert tiny.words == ["slow+", "last+"]
        assert "ended the command that a killed run left behind" in run.messages
        assert tiny.up().counts == {"unchanged": 4}
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
        ("create='kill -9 $$'", "SIGKILL"),
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
    assert embedded.outputs(tiny.stack) is None


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
    assert tiny.up().counts == {"unchanged": 3}


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
    assert len(tiny.records["a"]["outputs"]["stdout"]) > 2**17
    tiny.destroy()
    assert tiny.words == ["a-"]


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
    assert tiny.up().counts == {"unchanged": 5}
    tiny.destroy()
    assert list(made.iterdir()) == []
    assert not tiny.run_root.exists()
    assert not tiny.state_file.parent.exists()
