"""A stack that the real CLI runs: the CLI is killed or interrupted, or the run directory is gone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_engine_local_stack import Engine
from test_engine_semantics import write

from cli import engine as runner
from cli.console.events import Event, Message
from infra.errors import UserError
from node.system.processes import ProcessId, descendants
from operations.local import system_packages
from tests.support.checkout import SMALL, Checkout, until
from tests.support.tiny_project import ROOT, Tiny, make

PROGRAM = """
    first = command("first")
    slow = command("slow", create=f"echo $$ > '{LOG}.pid'; while ! [ -e '{LOG}.go' ]; do sleep 0.05; done",
                   opts={"depends_on": [first]})
    command("last", opts={"depends_on": [slow]})
"""


@pytest.fixture
def tiny(pulumi: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    project = make(tmp_path, monkeypatch)
    write(project, PROGRAM)
    return project


@pytest.fixture
def running(tiny: Tiny) -> Iterator[subprocess.Popen[str]]:
    """`up` in a separate process that is in the middle of its slow command."""
    code = f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(ROOT)!r})
        from cli import engine as runner
        from infra.errors import UserError
        from infra.program import locations
        from infra.program.stack import Stack
        locations.run_root = lambda: Path({str(tiny.run_root)!r})
        try:
            stack = Stack(Path({str(tiny.path)!r}), "t")
            runner.select(stack, "local").up(lambda event: print(event, flush=True))
        except UserError as error:
            print(error, file=sys.stderr)
            sys.exit(error.exit_code)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(tiny.log.with_name("log.pid").exists, 60, "the slow command", 0.02)
    # The CLI may leave processes of its plugins behind.
    below = [process for pid in descendants(child.pid) if (process := ProcessId.of(pid))]
    yield child
    child.kill()
    child.communicate()
    kill(*(process.pid for process in below if process.alive()))


def kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def goes_on(tiny: Tiny) -> str:
    """Run a second `up` and return its output."""
    tiny.log.with_name("log.go").touch()
    events: list[Event] = []
    engine = runner.select(tiny.stack, "local")
    engine.up(events.append)
    assert tiny.words == ["first+", "last+"]
    engine.destroy(events.append)
    assert not tiny.state_file.parent.exists()
    return "\n".join(event.text for event in events if isinstance(event, Message))


def test_after_kill_9_of_everything_up_goes_on(tiny: Tiny, running: subprocess.Popen[str]) -> None:
    """The CLI leaves a lock in its backend, which only we use."""
    kill(*descendants(running.pid), running.pid)
    running.wait()
    assert "the Pulumi CLI was killed as it worked on this stack" in goes_on(tiny)


def test_a_cli_that_outlived_its_caller_is_not_disturbed(tiny: Tiny, tmp_path: Path) -> None:
    locks = tiny.state_file.parent / "backend" / ".pulumi" / "locks" / "organization" / "tiny" / "t"
    locks.mkdir(parents=True)
    shutil.copy("/bin/sleep", tmp_path / "pulumi")
    with subprocess.Popen([tmp_path / "pulumi", "60"]) as cli:
        (locks / "1.json").write_text(json.dumps({"pid": cli.pid, "username": "u", "hostname": "h"}))
        words = rf"process {cli.pid}\) still works on stack t(.|\n)*kill -INT {cli.pid}"
        with pytest.raises(UserError, match=words) as caught:
            runner.select(tiny.stack, "local").up()
        cli.kill()
    assert caught.value.exit_code == 3
    assert "the Pulumi CLI was killed as it worked on this stack" in goes_on(tiny)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_the_cli_too(
    tiny: Tiny, running: subprocess.Popen[str], number: signal.Signals
) -> None:
    below = descendants(running.pid)
    if number == signal.SIGINT:  # as a terminal sends it
        os.killpg(running.pid, number)
    else:
        running.send_signal(number)
    tiny.log.with_name("log.go").touch()
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert "interrupted; what was done is recorded: `./cluster up --stack t` continues" in said
    until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in below), 20, "the CLI's end")
    goes_on(tiny)


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    bool(system_packages.missing()), reason=f"missing packages: {', '.join(system_packages.missing())}"
)
def test_up_after_a_reboot_makes_the_cluster_anew(pulumi: None, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "a checkout", SMALL)
    engine = Engine(checkout)
    try:
        up = engine.cluster("up")
        assert up.returncode == 0, up.stderr
        while found := checkout.processes():
            for pid in found:
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(checkout.run_directory)
        up = engine.cluster("up")
        assert up.returncode == 0, up.stderr
        assert "the run directory is gone: all of the stack is created again" in up.stderr
        assert "debug" in checkout.execute("sinfo", "-h", "-o", "%P %a")
        down = engine.cluster("down")
        assert down.returncode == 0, down.stderr
        assert "nothing is left" in down.stderr
    finally:
        assert checkout.processes() == []
