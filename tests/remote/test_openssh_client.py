"""`ssh` as the benchmark calls it, with a real sshd on loopback, real proxies, and every failure."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra import ssh
from infra.benchmark import Workload
from infra.errors import EXIT_REFUSED
from infra.ssh import Target
from operations import openssh, waiting
from operations import ssh as clients
from tests.support import sentences
from tests.support.checkout import ROOT, until
from tests.support.login_machine import ENVIRONMENT, LoginMachine
from tests.support.sshd import children, make_key, public, reserved_port

# Connects standard input and output with a port, as Session Manager's and IAP's commands do for ssh.
RELAY = """
import os, socket, sys, threading
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def upward():
    while data := os.read(0, 65536):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
threading.Thread(target=upward, daemon=True).start()
while data := connection.recv(65536):
    os.write(1, data)
"""


@pytest.fixture
def target(machine: LoginMachine) -> Target:
    return Target(
        **{**machine.endpoint, "host_keys": (machine.sshd.host_key,)}, connect_seconds=60, patience=0
    )


@pytest.fixture
def relay(tmp_path: Path) -> str:
    """A ProxyCommand."""
    script = tmp_path / "a relay's script.py"
    script.write_text(RELAY)
    return f"{shlex.join([sys.executable, str(script)])} %h %p"


def fails(whither: Target, code: str, *values: object, line: str = "true", seconds: float = 90) -> None:
    """Expect an error with these values. What follows them may be words of ssh, so they are not compared."""
    with sentences.raises(code, *values, compared=False):
        openssh.run(whither, line, seconds=seconds)


def test_a_command_gets_its_input_and_its_output_comes_back(target: Target) -> None:
    text = "a 'quoted'\n" * 20_000
    assert openssh.run(target, "cat", stdin=text, seconds=60) == text
    assert openssh.run(target, "cat", seconds=60) == ""


def test_a_failing_command_fails_with_its_own_words(target: Target) -> None:
    with sentences.raises("ssh.remote-failed", "why"):
        openssh.run(target, "echo why >&2; exit 3", seconds=90)
    with sentences.raises("ssh.remote-failed", "status 3"):
        openssh.run(target, "exit 3", seconds=90)


def test_through_a_proxys_command(target: Target, relay: str, machine: LoginMachine) -> None:
    assert openssh.run(replace(target, proxy_command=relay), "echo in", seconds=60) == "in\n"
    nowhere = replace(target, host="i-0123456789", port=1)
    command = f"{relay.removesuffix(' %h %p')} 127.0.0.1 {machine.sshd.port}"
    assert openssh.run(replace(nowhere, proxy_command=command), "echo in", seconds=60) == "in\n"


def test_through_another_machine(
    target: Target, make_machine: Callable[[str], LoginMachine], machine: LoginMachine, tmp_path: Path
) -> None:
    hop = make_machine("hop").sshd
    known = tmp_path / "known hop"
    known.write_text(f"[127.0.0.1]:{hop.port} {hop.host_key}\n")
    words = [
        "ssh",
        "-F",
        "none",
        "-i",
        str(hop.client_key),
        f'-oUserKnownHostsFile="{known}"',
        "-p",
        str(hop.port),
    ]
    proxied = replace(target, proxy_command=f"{shlex.join(words)} -W %h:%p 127.0.0.1")
    assert openssh.run(proxied, "echo in", seconds=60) == "in\n"
    assert (hop.logins(), machine.sshd.logins()) == (1, 1)


@pytest.mark.parametrize("way", ["direct", "proxied"])
def test_another_host_key_is_refused_and_nothing_is_sent(
    target: Target, relay: str, machine: LoginMachine, tmp_path: Path, way: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    other = (public(make_key(tmp_path / "other")),)
    pinned = replace(target, host_keys=other, patience=600, proxy_command=relay if way == "proxied" else None)
    with sentences.raises("ssh.host-key", pinned.name):
        openssh.run(pinned, f"touch {tmp_path}/was-here", seconds=90)
    assert "trying again" not in capsys.readouterr().err
    assert machine.sshd.logins() == 0
    assert not (tmp_path / "was-here").exists()


def test_a_key_of_another_kind_is_another_key(target: Target, tmp_path: Path) -> None:
    ecdsa = public(make_key(tmp_path / "ecdsa", "ecdsa"))
    fails(replace(target, host_keys=(ecdsa,)), "ssh.host-key")


def test_every_published_key_counts(target: Target, tmp_path: Path) -> None:
    both = (public(make_key(tmp_path / "ecdsa", "ecdsa")), *target.host_keys)
    openssh.run(replace(target, host_keys=both), "true", seconds=60)


def test_no_published_key_is_no_connection(target: Target) -> None:
    fails(replace(target, host_keys=()), "ssh.no-host-key")


def test_a_key_in_a_file(target: Target, machine: LoginMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK")
    openssh.run(replace(target, identity=str(machine.sshd.client_key)), "true", seconds=60)


def test_keys_that_are_not_accepted(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = make_key(tmp_path / "wrong key")
    with sentences.raises("ssh.key-refused", wrong):
        openssh.run(replace(target, identity=str(wrong), patience=20), "true", seconds=90)
    with sentences.raises("ssh.no-identity", f"{wrong}x"):
        openssh.run(replace(target, identity=f"{wrong}x"), "true", seconds=90)
    monkeypatch.delenv("SSH_AUTH_SOCK")
    with sentences.raises("ssh.no-key-accepted", f"{target.user}@127.0.0.1", "`ssh-add`"):
        openssh.run(replace(target, user=target.user), "true", seconds=90)


def test_a_machine_that_is_not_there_is_named_with_the_way(target: Target) -> None:
    with reserved_port() as sock:
        port = sock.getsockname()[1]
        away = (f"{target.user}@127.0.0.1 port {port}", "Connection refused")
        fails(replace(target, port=port), "ssh.unreachable", *away)
    proxy = "echo no such instance >&2; exit 1"
    fails(replace(target, proxy_command=proxy), "ssh.unreachable", f"`{proxy}`")


def test_a_machine_that_is_not_there_yet_is_waited_for(
    target: Target, machine: LoginMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        """The server comes up during the pause before the second attempt."""
        pauses.append(seconds)
        if len(pauses) == 2:
            machine.sshd.start(again=True)

    machine.sshd.stop()
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))
    assert openssh.run(replace(target, patience=600), "echo in", seconds=60) == "in\n"
    assert pauses == [openssh.PAUSE_SECONDS] * 2
    assert f"cannot reach {target.name}" in (output := capsys.readouterr().err)
    assert "Connection refused; trying again" in output


@pytest.mark.parametrize("silent", ["sshd", "proxy", "command"])
def test_nothing_that_says_nothing_is_waited_for_longer_than_allowed(
    target: Target, machine: LoginMachine, silent: str
) -> None:
    if silent == "sshd":
        machine.sshd.freeze()
        fails(replace(target, connect_seconds=2), "ssh.unreachable", target.name)
    elif silent == "proxy":
        slow = replace(target, proxy_command="exec sleep 300", connect_seconds=2)
        fails(slow, "ssh.unreachable", target.name)
    else:
        line = f": {shlex.quote(str(machine.shared))}; sleep 300; :"
        fails(target, "ssh.no-answer", target.name, "1.5 s", line=line, seconds=1.5)


def test_a_proxy_that_outlives_its_ssh_is_ended(target: Target, relay: str, tmp_path: Path) -> None:
    clings = tmp_path / "clings"
    clings.write_text(
        f"#!/bin/sh\ntrap '' HUP TERM\necho $$ >'{tmp_path}/pid'\n{relay[:-5]}$1 $2\nsleep 300\n"
    )
    clings.chmod(0o755)
    assert openssh.run(replace(target, proxy_command=f"{clings} %h %p"), "echo in", seconds=60) == "in\n"
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not _alive(pid), 60, "the proxy's end")


def test_the_users_own_configuration_and_known_hosts_do_not_count(target: Target, tmp_path: Path) -> None:
    """The user's own settings could forward, multiplex, or trust a key that nobody published."""
    words = openssh.arguments(target, tmp_path)
    assert words[:3] == ["ssh", "-F", "none"]
    assert "-oGlobalKnownHostsFile=none" in words
    assert words[-2:] == ["--", "127.0.0.1"]


def test_without_ssh_it_is_said(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with sentences.raises("ssh.no-client", "`ssh`"):
        openssh.run(target, "true", seconds=90)


def test_known_hosts_in_any_folder(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / 'a "temporary" folder\'s 100%h \\ $HOME'
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert openssh.run(target, "echo in", seconds=60) == "in\n"
    assert list(folder.iterdir()) == []


# --- the process that runs it ----------------------------------------------------------------------------


def test_whoever_runs_it_is_asked_for_their_name(target: Target) -> None:
    said = json.dumps({"login_user": target.user})
    asking = replace(target, user="", ask=shlex.join(["printf", "%s", said]))
    assert clients.named(asking) == target
    assert clients.named(target) is target
    with sentences.raises("ssh.tool-failed"):
        clients.named(replace(target, ask="sh -c 'echo no credentials >&2; exit 3'"))


def client(whither: Target | None, verb: str, *options: str, stdin: str = "") -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop(ssh.VARIABLE, None)
    if whither is not None:
        env[ssh.VARIABLE] = json.dumps(asdict(whither))
    process = subprocess.Popen(
        [sys.executable, "-m", "operations.ssh", verb, *options],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(stdin)
    process.stdin.close()
    process.stdin = None
    return process


def test_interrupted_it_takes_ssh_and_its_wait_along(target: Target, machine: LoginMachine) -> None:
    waiting = client(target, "environment", f"--apps={machine.apps}", "--digest=never", "--seconds=600")
    with waiting:
        assert waiting.stderr is not None
        assert "waiting for the training environment" in waiting.stderr.readline()
        (client_pid,) = children(waiting.pid)
        waiting.terminate()
        assert waiting.wait(60) == 143
        until(lambda: not _alive(client_pid), 60, "ssh's end")
        assert "Traceback" not in waiting.stderr.read()


def test_ctrl_c_while_it_tries_again_is_no_traceback(target: Target) -> None:
    with client(replace(target, port=1, patience=600), "submit", "--tool=x", "--run=y") as trying:
        assert trying.stderr is not None
        assert "trying again" in trying.stderr.readline()
        trying.send_signal(signal.SIGINT)
        assert trying.wait(60) == 130
        assert trying.stderr.read() == ""


def test_what_it_is_told_wrongly_is_said_in_a_line(target: Target) -> None:
    with client(None, "submit", "--tool=x", "--run=y") as process:
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said.count("\n")) == (1, 1)
    assert ssh.VARIABLE in said


def test_a_workload_that_changed_on_the_way_is_not_staged(target: Target, machine: LoginMachine) -> None:
    options = (f"--shared={machine.shared}", "--staged=x", "--digest=" + "0" * 64)
    with client(target, "stage", *options) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was changed while it was being staged" in said
    assert machine.staged() == {}


def test_a_users_program_is_staged_with_its_modes(
    target: Target, machine: LoginMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "a project"
    (project / "code").mkdir(parents=True)
    (project / "workload").mkdir()
    (project / "workload" / "launcher.py").write_text("launcher\n")
    (project / "workload" / "train.py").write_text("the built-in training\n")
    (project / "code" / "train.py").write_text("print(1)\n")
    (project / "code" / "it's a tool").write_text("#!/bin/sh\n")
    (project / "code" / "it's a tool").chmod(0o755)
    own = ("code/train.py", "code/it's a tool")
    digest = Workload.of(project, own).digest
    options = (f"--shared={machine.shared}", "--staged=x", f"--digest={digest}", *own)
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(project))
    with client(target, "stage", *options) as process:
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    assert machine.staged() == {
        "x": {
            "files/code/train.py": b"print(1)\n",
            "files/code/it's a tool": b"#!/bin/sh\n",
            "launcher.py": b"launcher\n",
        }
    }
    staged = machine.shared / "bench" / "x" / "workload" / "files" / "code"
    assert os.access(staged / "it's a tool", os.X_OK)
    assert not os.access(staged / "train.py", os.X_OK)


def test_cancel_goes_on_without_the_machine(target: Target, machine: LoginMachine) -> None:
    machine.sshd.stop()
    with client(replace(target, patience=600), "cancel", "--tool=x", "--run=y") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "was not cancelled" in said
    assert "Connection refused" in said


def test_a_guard_asks_the_machine_for_jobs_and_refuses_without_an_answer(
    target: Target, machine: LoginMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_STACKS_END_JOBS", raising=False)
    running = {"slurm_id": "3", "name": "train", "user": "ann", "state": "RUNNING"}

    def guard() -> tuple[int, str]:
        with client(replace(target, patience=600), "guard", f"--tool={machine.tool}") as process:
            _, said = process.communicate(timeout=60)
        return process.returncode, said

    for jobs, status in (([], 0), ([running], EXIT_REFUSED)):
        machine.tool.write_text(f"#!/bin/sh\necho '{json.dumps({'jobs': jobs})}'\n")
        code, said = guard()
        assert (code, "job 3 train (ann, RUNNING)" in said) == (status, bool(jobs)), said
    machine.sshd.stop()
    code, said = guard()
    assert (code, "Connection refused" in said, "SLURM_STACKS_END_JOBS=1" in said) == (
        EXIT_REFUSED,
        True,
        True,
    )
    monkeypatch.setenv("SLURM_STACKS_END_JOBS", "1")
    assert guard() == (0, "")


def test_environment_says_where_it_is(target: Target, machine: LoginMachine) -> None:
    options = (f"--apps={machine.apps}", f"--digest={ENVIRONMENT}", "--seconds=1")
    with client(target, "environment", *options) as process:
        said, _ = process.communicate(timeout=60)
    assert said == f"{machine.apps}/envs/{ENVIRONMENT}\n"


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
