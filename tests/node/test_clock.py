"""A machine whose clock is off says so in its boot, where munge would have kept it out without a word."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.bootstrap import clock, key_server, root_port, step_runner
from node.bootstrap.context import ALL, Context, Step
from node.bootstrap.report import BootReport, failure, file_sink
from node.design import time_limits
from tests.support.checkout import ROOT, until
from tests.support.off_clock import environment, library
from tests.support.recorded import Recorder, machine

HOUR = 3600.0


@pytest.fixture
def booting(tmp_path: Path) -> tuple[Context, Recorder]:
    """A machine without chrony."""
    context, run = machine(tmp_path)
    run.fail("systemctl is-active", 3)
    return context, run


@pytest.mark.parametrize("ahead", [0.0, 200.0, -200.0])
def test_a_clock_that_munge_bears_is_left_alone(booting: tuple[Context, Recorder], ahead: float) -> None:
    context, run = booting
    clock.remember(context, time.time() - ahead)
    clock.check(context)
    assert run.calls == []


@pytest.mark.parametrize(("ahead", "words"), [(HOUR, "3600 s ahead of"), (-HOUR, "3600 s behind")])
def test_a_boot_fails_in_words_and_its_controller_finds_them(
    booting: tuple[Context, Recorder],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ahead: float,
    words: str,
) -> None:
    """By its own clock the report of a machine that is behind would be a former machine's."""
    context, _ = booting
    file = tmp_path / "boot.json"
    true = time.time
    launched = true() - 60
    monkeypatch.setattr(time, "time", lambda: true() + ahead)
    context.report = BootReport("compute-0", "compute", [file_sink(file)])

    def secrets(machine: Context) -> str:
        clock.remember(machine, true())
        return ""

    def ready(machine: Context) -> str:
        clock.check(machine)
        return ""

    steps = (Step("secrets", 60, ALL, secrets), Step("ready", 60, ALL, ready))
    assert not step_runner.run_steps(context, steps)
    said = failure(file, since=launched)
    assert said is not None
    assert said.startswith(f"step ready: this machine's clock is {words} the controller's, and munge refuses")
    content = json.loads(file.read_text())
    assert launched < content["started"] <= content["ended"] <= true() + 1


def test_chrony_has_a_while_to_set_it(
    booting: tuple[Context, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, run = booting
    monkeypatch.setattr(clock, "PAUSE_SECONDS", 0.01)
    true, ahead, asked = time.time, [HOUR], [0]
    monkeypatch.setattr(time, "time", lambda: true() + ahead[0])

    def makestep(*_argv: str, **_options: object) -> str:
        asked[0] += 1
        if asked[0] == 3:  # it has its first measurements by now
            ahead[0] = 0.0
        return ""

    run.answer("systemctl is-active", "")
    run.answer("chronyc makestep", makestep)
    clock.remember(context, true())
    clock.check(context)
    assert asked == [3]
    # One that cannot reach its source does not hold the boot for ever.
    ahead[0] = HOUR
    monkeypatch.setattr(clock, "SYNC_SECONDS", 0.1)
    with pytest.raises(OSError, match=r"3600 s ahead of the controller's.*chronyc tracking"):
        clock.check(context)


def test_the_wait_leaves_its_step_time_for_words() -> None:
    assert clock.SYNC_SECONDS + 2 * 10 < time_limits.READY


# --- munge itself -----------------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: sockets are limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="clock-") as made:
        Path(made).chmod(0o711)
        yield Path(made)


@contextlib.contextmanager
def munged(folder: Path, name: str, ahead: float) -> Iterator[str]:
    """munged with the cluster's key on a machine with this clock; its socket."""
    own = folder / name
    own.mkdir(mode=0o755)
    line = [
        "/usr/sbin/munged", "--foreground", "--force", f"--key-file={folder / 'key'}",
        f"--socket={own / 's'}", f"--pid-file={own / 'p'}", f"--seed-file={own / 'seed'}",
        f"--log-file={own / 'log'}",
    ]  # fmt: skip
    env = {**os.environ, **(environment(ahead, library()) if ahead else {})}
    with subprocess.Popen(line, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
        try:
            until((own / "s").exists, 60, f"munged of {name}")
            yield str(own / "s")
        finally:
            daemon.terminate()


def verdict(sender: str, receiver: str) -> str:
    """What munge says of a message from one machine to another."""
    message = subprocess.run(["munge", f"--socket={sender}", "-n"], capture_output=True, check=True).stdout
    result = subprocess.run(
        ["unmunge", f"--socket={receiver}", "--keys=STATUS"], input=message, capture_output=True, check=False
    )
    return result.stdout.decode().split(maxsplit=1)[1].strip()


BOOT = """
import sys
from pathlib import Path
from node.bootstrap import clock, key_server
from tests.support.recorded import machine
context, run = machine(Path(sys.argv[2]))
run.fail("systemctl is-active", 3)
clock.remember(context, key_server.fetch("127.0.0.1", int(sys.argv[1])).time)
try:
    clock.check(context)
    print("agrees")
except OSError as error:
    print(error)
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("munge") is None or not Path("/usr/sbin/munged").exists(),
    reason="needs munge, and root for the controller's key",
)
def test_the_boot_refuses_the_clocks_that_munge_refuses(folder: Path) -> None:
    """Real munge daemons, and a real boot's question to the controller, on machines with other clocks."""
    (folder / "key").write_bytes(os.urandom(key_server.KEY_BYTES))
    (folder / "key").chmod(0o400)
    server = socket.create_server(("127.0.0.1", 0))
    found = {}
    with server, contextlib.ExitStack() as stack:
        controller = stack.enter_context(munged(folder, "controller", 0.0))
        for ahead in (280.0, 310.0, -310.0):

            def serve() -> None:
                connection, (address, source) = server.accept()
                with connection:
                    key_server.answer(connection, address, source, folder / "key", root_port.Refusals())

            node = stack.enter_context(munged(folder, f"{ahead:g}", ahead))
            serving = threading.Thread(target=serve, daemon=True)
            serving.start()
            line = [sys.executable, "-c", BOOT, str(server.getsockname()[1]), str(folder / f"root{ahead:g}")]
            env = {**os.environ, "PYTHONPATH": str(ROOT), **environment(ahead, library())}
            booted = subprocess.run(line, env=env, capture_output=True, text=True, check=True, timeout=120)
            serving.join(60)
            found[ahead] = (verdict(controller, node), verdict(node, controller), booted.stdout.strip())
    verdicts = {ahead: said[:2] for ahead, said in found.items()}
    assert verdicts == {
        280.0: ("Success (0)", "Success (0)"),
        310.0: ("Expired credential (15)", "Rewound credential (16)"),
        -310.0: ("Rewound credential (16)", "Expired credential (15)"),
    }
    assert found[280.0][2] == "agrees"
    assert found[310.0][2].startswith("this machine's clock is 310 s ahead of the controller's, and munge")
    assert found[-310.0][2].startswith("this machine's clock is 310 s behind the controller's, and munge")
