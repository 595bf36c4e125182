"""Signals to commands without a cluster: no traceback, no lost command, no endless wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cli.console.events import Message
from cli.engine import interrupt
from infra.errors import UserError
from node.system.processes import ProcessId
from operations import processes
from operations.signals import handled
from tests.support.checkout import Checkout, until
from tests.support.mishaps import Terminal
from tests.support.tiny_project import ROOT, Tiny, lives, make
from tests.support.wide import wide

INTERRUPTED = 130


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("interrupt") / "a checkout")


@pytest.mark.parametrize("seconds", [0.15, *wide(0.25), 0.35, *wide(0.45)])
def test_ctrl_c_at_any_moment_of_a_plan_is_the_end(checkout: Checkout, seconds: float) -> None:
    plan = Terminal.cluster(checkout, "plan")
    plan.look(seconds)
    plan.press()
    assert plan.end(60) in (INTERRUPTED, -signal.SIGINT, 0), plan.text
    assert "Traceback" not in plan.text
    assert plan.cursor_is_shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_task_of_the_program_can_swallow_an_interrupt(number: signal.Signals) -> None:
    """This holds for any code that runs when the signal comes, whatever exceptions it catches."""

    def careless() -> None:
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), number)

    async def program() -> None:
        asyncio.get_running_loop().call_soon(careless)
        await asyncio.wait_for(asyncio.Event().wait(), 60)

    with pytest.raises(KeyboardInterrupt), interrupt.as_keyboard_interrupt():
        asyncio.run(program())


def test_an_interrupt_in_code_whose_exceptions_python_ignores_is_not_lost(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def body() -> None:
        finalized = Finalized()
        del finalized
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt), interrupt.as_keyboard_interrupt():
        body()
    assert capfd.readouterr().err == ""


def test_a_signal_that_ends_no_wait_is_handled_at_once() -> None:
    """The kernel gives the signal to another thread here, as if it came just before the wait begins."""

    def elsewhere() -> None:
        time.sleep(1.0)  # until the loop waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    async def waits() -> None:
        loop = asyncio.get_running_loop()
        heard = loop.create_future()

        def handle(_number: int, _frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(heard.set_result, None)

        with handled(handle), interrupt.waking_loop(loop):
            threading.Thread(target=elsewhere).start()
            otherwise = loop.call_later(60, lambda: None)
            await heard
            assert loop.time() < otherwise.when(), "the loop had waited for something else"

    asyncio.run(waits())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_is_a_word_and_a_status(number: signal.Signals) -> None:
    code = f"""
        import os, sys
        sys.path.insert(0, {str(ROOT)!r})
        os.environ["SLURM_STACKS_PROJECT"] = {str(ROOT)!r}
        from cli import main as cli
        from cli.providers import login_machine
        def wait(*_): os.kill(os.getpid(), {int(number)}); import time; time.sleep(100)
        login_machine.cluster_status = wait
        sys.argv = ["cluster", "status"]
        cli.main()
    """
    terminal = Terminal([sys.executable, "-c", textwrap.dedent(code)], dict(os.environ), ROOT)
    assert terminal.end() == INTERRUPTED
    assert terminal.text.split() == ["interrupted"]


STARTED = """
import os, signal, sys
ignored, blocked = (eval(words) for words in sys.argv[1:3])
for number in ignored:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
os.execv(sys.argv[3], sys.argv[3:])
"""


def started(ignored: Sequence[int], blocked: Sequence[int], *command: str) -> list[str]:
    """Start a command whose caller ignores and blocks signals."""
    words = ([int(number) for number in numbers] for numbers in (ignored, blocked))
    return [sys.executable, "-c", STARTED, *map(repr, words), *command]


EVERY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize(
    ("ignored", "blocked", "number"),
    [
        (EVERY, (), signal.SIGTERM),
        ((), EVERY, signal.SIGTERM),
        ((), EVERY, signal.SIGINT),
        ((signal.SIGINT,), (signal.SIGHUP,), signal.SIGHUP),
    ],
)
def test_a_command_is_ended_however_it_was_started(
    ignored: Sequence[int], blocked: Sequence[int], number: signal.Signals
) -> None:
    code = f"""
        import os, sys, time
        sys.path.insert(0, {str(ROOT)!r})
        os.environ["SLURM_STACKS_PROJECT"] = {str(ROOT)!r}
        from cli import main as cli
        from cli.providers import login_machine
        def wait(*_): os.kill(os.getpid(), {int(number)}); time.sleep(100)
        login_machine.cluster_status = wait
        sys.argv = ["cluster", "status"]
        cli.main()
    """
    terminal = Terminal(
        started(ignored, blocked, sys.executable, "-c", textwrap.dedent(code)), dict(os.environ), ROOT
    )
    assert terminal.end() == INTERRUPTED
    assert terminal.text.split() == ["interrupted"]


@pytest.mark.parametrize(
    ("ignored", "says"), [([signal.SIGINT], True), ([signal.SIGHUP], False), ([], False)]
)
def test_a_command_in_the_background_says_what_interrupts_it(ignored: Sequence[int], says: bool) -> None:
    code = f"""
        import os, sys
        sys.path.insert(0, {str(ROOT)!r})
        from cli.engine import interrupt
        hint = interrupt.background_hint()
        print(hint == (f"started in the background: Ctrl-C does not reach this command, "
              f"`kill {{os.getpid()}}` interrupts it"), hint is None)
    """
    command = started(ignored, [], sys.executable, "-c", textwrap.dedent(code))
    result = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert result == [str(says), str(not says)]


INHERITED = """
import signal, subprocess

def test_it():
    status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    masks = dict(line.split(":") for line in status.splitlines() if line.startswith("Sig"))
    assert [int(masks[name], 16) & NUMBERS for name in ("SigBlk", "SigIgn")] == [0, 0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
"""A test of what the programs get that a test starts; NUMBERS is the mask of the signals."""


def test_the_suite_sets_the_signals_that_it_relies_on(tmp_path: Path) -> None:
    """Its tests and their programs get all signals, even if a script has started it with `nohup … &`."""
    all_of_them = (*EVERY, signal.SIGQUIT)
    mask = sum(1 << (number - 1) for number in all_of_them)
    (tmp_path / "test_signals.py").write_text(INHERITED.replace("NUMBERS", str(mask)))
    (tmp_path / "pytest.ini").touch()
    done = subprocess.run(
        started(
            all_of_them, all_of_them, sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest",
            "-p", "no:cacheprovider",
        ),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.wide  # The one above shows by default which signals reach the tests.
def test_tests_of_signals_pass_however_the_suite_was_started() -> None:
    names = "ctrl_c_says_what_there_is or a_closed_terminal_is or interrupt_reaches_every_suite"
    files = ("cli/test_mishaps_life_interrupt.py", "cli/test_run_tests.py")
    done = subprocess.run(
        started(
            (*EVERY, signal.SIGQUIT), EVERY, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "-k", names, *(str(ROOT / "tests" / file) for file in files),
        ),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_what_nohup_ignores_stays_ignored() -> None:
    code = f"""
        import os, signal, sys
        sys.path.insert(0, {str(ROOT)!r})
        from cli.engine import interrupt
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with interrupt.as_keyboard_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
        print("goes on")
    """
    terminal = Terminal([sys.executable, "-c", textwrap.dedent(code)], dict(os.environ), ROOT)
    assert terminal.end() == 0
    assert terminal.text.split() == ["goes", "on"]


def test_what_runs_in_the_background_can_be_ended() -> None:
    """A shell makes background commands ignore Ctrl-C, which must stay so. `kill` must work all the same."""
    code = f"""
        import os, signal, sys, time
        sys.path.insert(0, {str(ROOT)!r})
        from cli.engine import interrupt
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with interrupt.as_keyboard_interrupt():
            os.kill(os.getpid(), signal.SIGINT)
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(100)
            except KeyboardInterrupt:
                print("ended")
    """
    terminal = Terminal([sys.executable, "-c", textwrap.dedent(code)], dict(os.environ), ROOT)
    assert terminal.end() == 0
    assert terminal.text.split() == ["ended"]


def test_a_command_that_is_just_starting_is_reached_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, start = processes.Processes(), subprocess.Popen

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        child = start(*arguments, **options)
        assert running.signal(signal.SIGINT) == 0, "it is not known yet"
        return child

    monkeypatch.setattr(subprocess, "Popen", meanwhile)
    done = processes.run(
        ["sleep", "60"], cwd=tmp_path, env=os.environ, stdin="", on_line=lambda *_: None, processes=running
    )
    assert done.returncode == -signal.SIGINT


def test_a_command_that_was_about_to_start_is_reached_too(tmp_path: Path) -> None:
    """The interrupt comes between the last check for one and the command's start."""
    running = processes.Processes()
    assert running.signal(signal.SIGINT) == 0
    done = processes.run(
        ["sleep", "60"], cwd=tmp_path, env=os.environ, stdin="", on_line=lambda *_: None, processes=running
    )
    assert done.returncode == -signal.SIGINT


# --- without the Pulumi CLI ------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    return make(tmp_path, monkeypatch)


def run_up(tiny: Tiny) -> list[str]:
    """Run `up` in a separate process that ends with its error's status."""
    code = f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(ROOT)!r})
        from cli import main as cli
        from cli.console.progress import Console
        from infra.errors import UserError
        from cli.engine.embedded import EmbeddedRunner
        from infra.program import locations
        from infra.program.stack import Stack
        locations.run_root = lambda: Path({str(tiny.run_root)!r})
        console = Console()
        try:
            with console.waiting("bringing it up"):
                stack = Stack(Path({str(tiny.path)!r}), {tiny.stack_name!r})
                EmbeddedRunner(stack).up(console.on_event)
        except UserError as error:
            cli._fail(str(error), error.exit_code)
        finally:
            cli._let_go()
    """
    return [sys.executable, "-c", textwrap.dedent(code)]


SLOW = """
    first = command("first")
    slow = command("slow", create=f"echo $$ > '{LOG}.pid'; while ! [ -e '{LOG}.go' ]; do sleep 0.05; done",
                   opts={"depends_on": [first]})
    command("last", opts={"depends_on": [slow]})
"""


@pytest.fixture
def slow(tiny: Tiny) -> Iterator[Terminal]:
    tiny.write(SLOW)
    terminal = Terminal(run_up(tiny), dict(os.environ), tiny.path)
    pid = tiny.log.with_name("log.pid")
    until(lambda: pid.exists() and pid.read_text(), 60, "the slow command", 0.01)
    yield terminal
    terminal.child.kill()
    terminal.child.wait()


def test_ctrl_c_before_anything_was_made_names_nothing_to_go_on_with(tiny: Tiny) -> None:
    tiny.write("import os, signal; os.kill(os.getpid(), signal.SIGINT); command('a')")
    with pytest.raises(UserError) as caught:
        tiny.up()
    assert str(caught.value) == "interrupted; nothing of the stack is there."
    assert tiny.words == []


def test_ctrl_c_says_what_there_is_and_what_to_do(tiny: Tiny, slow: Terminal) -> None:
    slow.press()
    assert slow.end() == INTERRUPTED
    assert "interrupted; of the stack there is first, slow." in slow.text
    assert "`./cluster up --stack t` continues where this stopped" in slow.text
    assert "`./cluster down --stack t` removes" in slow.text
    assert "! slow: interrupted" in slow.text
    assert slow.cursor_is_shown
    assert tiny.words == ["first+"]
    tiny.log.with_name("log.go").touch()
    assert tiny.up().operations == {"first": "unchanged", "slow": "created", "last": "created"}


def test_a_closed_terminal_is_an_interrupt_too_and_the_state_stays_true(tiny: Tiny, slow: Terminal) -> None:
    pid = int(tiny.log.with_name("log.pid").read_text())
    slow.hang_up()
    assert slow.end() == INTERRUPTED
    assert not lives(pid), "the command has ended"
    assert {name: made["whole"] for name, made in tiny.made.items()} == {"first": True, "slow": False}
    tiny.destroy()
    assert tiny.words == ["first+", "slow-", "first-"]


@pytest.mark.parametrize("verb", ["up", "down"])
def test_nothing_is_begun_that_ctrl_c_came_before(
    tiny: Tiny, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that a killed run left may take seconds to end, and the next command starts only then."""
    tiny.write(f"""command("half", create="echo $$ > '{tiny.log}.pid'; sleep 60")""")
    with tiny.process("up") as killed:
        until(lambda: tiny.made.get("half", {}).get("process"), 60, "the command", 0.02)
        killed.kill()
    stop = processes.end_leftover

    def ctrl_c(command: ProcessId) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: any(isinstance(e, Message) for e in tiny.events), 60, "the interrupt", 0.01)
        return stop(command)

    begun: list[Any] = []
    monkeypatch.setattr(processes, "end_leftover", ctrl_c)
    monkeypatch.setattr(processes, "run", lambda argv, **_: begun.append(argv))
    tiny.write("""command("half")""")
    with pytest.raises(UserError) as raised:
        tiny.up() if verb == "up" else tiny.destroy()
    assert raised.value.exit_code == INTERRUPTED
    assert begun == []
    assert not tiny.made["half"]["whole"]


def test_a_python_command_leaves_no_traceback_on_the_screen(tiny: Tiny) -> None:
    python, there = shlex.quote(sys.executable), tiny.log.with_name("there")
    tiny.write(f"""
        command("snake", create="{python} -c 'import time; open(\\"{there}\\", \\"w\\"); time.sleep(300)'")
    """)
    terminal = Terminal([*run_up(tiny)], dict(os.environ), tiny.path)
    until(lambda: tiny.made.get("snake", {}).get("process"), 60, "the command", 0.02)
    until(there.exists, 60, "a python in the midst of its work", 0.02)
    terminal.press()
    assert terminal.end() == INTERRUPTED
    assert "Traceback" not in terminal.text


def test_a_reader_that_has_gone_does_not_stop_a_run_half_way(tiny: Tiny) -> None:
    tiny.write(SLOW)
    terminal = Terminal(["sh", "-c", '"$@" 2>&1 | true', "sh", *run_up(tiny)], dict(os.environ), tiny.path)
    until(tiny.log.with_name("log.pid").exists, 60, "the slow command", 0.01)
    tiny.log.with_name("log.go").touch()
    terminal.end()
    assert tiny.words == ["first+", "last+"]
    assert tiny.up().counts == {"unchanged": 3}
