"""The controller takes a boot report from root of the machine that it is about, and from nobody else."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.bootstrap import report, report_sender, report_server, root_port
from node.bootstrap.report import BootReport, BrokenReportError, Reported
from node.bootstrap.report_sender import Sender
from node.logs.sources import report_lines
from tests.support.checkout import ROOT
from tests.support.ordinary_user import OrdinaryUser
from tests.support.report_controller import HERE, Controller

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may take a port below 1024")
NOW = 1_795_269_600.0
FAILED = {"state": "failed", "steps": [{"name": "mounts", "note": "no route", "tail": ["x", " "]}]}


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    made = Controller(tmp_path)
    yield made
    made.close()


def wait_for(there: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@root_only
def test_the_newest_report_of_each_machine_is_kept_with_the_controllers_time(controller: Controller) -> None:
    before = time.time()
    report_sender.send(
        HERE, json.dumps({**FAILED, "started": 5.0, "host": "login-0"}).encode(), controller.port
    )
    assert controller.send({"state": "booting", "steps": [], "notice": None}, "127.0.0.2") == b"taken"
    kept = controller.kept()
    assert kept is not None
    assert before <= kept.pop("received") <= time.time()
    assert kept == {"state": "failed", "failure": "step mounts: no route: x", "notice": None}
    other = controller.kept("127.0.0.2")
    assert other is not None
    assert other["state"] == "booting"
    report_sender.send(HERE, b'{"state": "ready", "steps": [], "notice": 6}', controller.port)
    again = controller.kept()
    assert again is not None
    assert (again["state"], again["failure"], again["notice"]) == ("ready", None, 6.0)
    assert (controller.folder / f"{HERE}.json").stat().st_mode & 0o777 == 0o600


@root_only
def test_an_ordinary_user_says_nothing_whatever_it_tries(controller: Controller, tmp_path: Path) -> None:
    """The report is refused for our client, for every source port of a user, and in a user namespace."""
    tries = """
import socket, sys
from node.bootstrap import report_sender
port = int(sys.argv[1])
content = b'{"state": "failed", "steps": [{"name": "x", "note": "mine"}]}'
try:
    report_sender.send("127.0.0.1", content, port)
except PermissionError:
    print("no reserved port")
for source in (0, 1024, 1025):
    connection = socket.socket()
    connection.settimeout(60)
    try:
        connection.bind(("", source))
        connection.connect(("127.0.0.1", port))
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        print(len(connection.recv(4096)))
    except OSError:
        print(0)
"""
    folder = tmp_path / "user"
    folder.mkdir()
    with contextlib.closing(OrdinaryUser(folder)) as user:
        for prefix in ([], ["unshare", "--user", "--map-root-user"]):
            argv = user(*prefix, sys.executable, "-c", tries, str(controller.port))
            done = subprocess.run(
                argv, capture_output=True, text=True, check=False, timeout=120,
                env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=folder,
            )  # fmt: skip
            if prefix and "unshare" in done.stderr:
                continue  # this kernel allows no user namespaces for ordinary users
            assert done.stdout.split("\n") == ["no reserved port", "0", "0", "0", ""], done.stderr
    assert controller.kept() is None
    assert controller.send({"state": "ready", "steps": []}) == b"taken", "and root still says what it has to"


BROKEN = [
    (b'{"state": "ready", "steps": [], "notice": NaN}', "it holds NaN"),
    (b'{"state": "ready", "steps": [], "notice": -Infinity}', "it holds -Infinity"),
    (b'{"state": "ready", "steps": [], "notice": 1e300}', "a week from now"),
    (b'{"state": "ready", "steps": [], "notice": 1e999}', "a week from now"),
    (b'{"state": "ready", "steps": [], "notice": 99999999999999999999}', "a week from now"),
    (b'{"state": "ready", "steps": [], "notice": 1' + b"0" * 400 + b"}", "a week from now"),
    (b'{"state": "ready", "steps": [], "notice": 1' + b"0" * 5000 + b"}", "it is no JSON"),
    (b'{"state": "ready", "steps": [], "notice": -1}', "a week from now"),
    (b'{"state": "ready", "steps": [], "notice": true}', "its notice is no number"),
    (b'{"state": "ready", "steps": [], "notice": "soon"}', "its notice is no number"),
    (b'{"state": "ready", "steps": ' + b"[" * 60_000, "nested too deeply"),
    (b'{"state": "ready", "steps": ' + b"[" * 300_000, "more than 65536 bytes"),
    (b"\xff\xfe", "it is no JSON"),
    (b"", "it is no JSON"),
    (b"[]", "no JSON object"),
    (b'{"steps": []}', "its state is none of"),
    (b'{"state": ["ready"], "steps": []}', "its state is none of"),
    (b'{"state": "ready"}', "its steps are no list"),
    (b'{"state": "failed", "steps": []}', "has no step"),
    (b'{"state": "failed", "steps": [7]}', "has no step"),
    (b'{"state": "failed", "steps": [{"name": "x", "note": 7}]}', "has no text"),
    (b'{"state": "failed", "steps": [{"name": "x", "note": "y", "tail": {"a": 1}}]}', "has no text"),
]


@pytest.mark.parametrize(("content", "why"), BROKEN, ids=[f"{c[-30:]!r}" for c, _ in BROKEN])
def test_a_report_of_another_form_is_refused_with_the_reason(content: bytes, why: str) -> None:
    with pytest.raises(BrokenReportError, match=why):
        report.checked(content, NOW)


@root_only
def test_what_is_refused_changes_nothing_and_harms_nobody(
    controller: Controller, capfd: pytest.CaptureFixture[str]
) -> None:
    assert controller.send({"state": "ready", "steps": []}) == b"taken"
    before = controller.kept()
    for content, why in BROKEN:
        # A report that is too long may be cut off, as TCP then does, before its answer is read.
        with pytest.raises(OSError, match=f"{why}|reset|Broken pipe|not connected"):
            report_sender.send(HERE, content, controller.port)
    assert controller.kept() == before
    assert controller.send(FAILED, "127.0.0.2") == b"taken"
    output = capfd.readouterr().err
    assert output.count("\n") <= root_port.LOG_LINES, "a machine cannot fill the controller's disk with lines"
    assert "127.0.0.1: a broken report: " in output


KINDS = (
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20)
    | st.sampled_from(report.STATES)
)  # fmt: skip
FIELDS = st.sampled_from(["state", "steps", "notice", "name", "note", "tail"])
TREES = st.recursive(
    KINDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=6),
    max_leaves=12,
)
LIKELY = st.fixed_dictionaries({"state": st.sampled_from(report.STATES), "steps": TREES, "notice": TREES})


@given(st.binary(max_size=300) | (TREES | LIKELY).map(lambda value: json.dumps(value).encode()))
def test_any_content_is_checked_or_refused(content: bytes) -> None:
    try:
        said = report.checked(content, NOW)
    except BrokenReportError:
        return
    assert said.state in report.STATES
    assert said.notice is None or 0 <= said.notice <= NOW + report.NOTICE_SECONDS
    assert said.failure is None or (said.failure.isprintable() and len(said.failure) < 1000)


@given(
    name=st.text(max_size=5000), note=st.text(max_size=5000),
    tail=st.lists(st.text(max_size=5000), max_size=30), state=st.sampled_from(["ready", "failed"]),
)  # fmt: skip
def test_whatever_a_boot_writes_is_taken(name: str, note: str, tail: list[str], state: str) -> None:
    """A failing boot is reported at once, however long its last words are, and in whatever characters."""
    written: list[str] = []
    boot = BootReport("compute-3", "compute", [written.append])
    boot.begin(name, 1.0)
    boot.end("failed", 1.0, note, tail)
    boot.finish(state)
    sent = report.brief(written[-1])
    assert len(sent) <= report.MOST_BYTES
    said = report.checked(sent, NOW)
    assert said.state == state
    assert (said.failure is not None) == (state == "failed")
    whole = report.checked(written[-1].encode(), NOW, report.OWN_BYTES)
    assert said == whole, "the short form says the same"


@given(st.binary(max_size=300) | (TREES | LIKELY).map(lambda value: json.dumps(value).encode()))
def test_people_are_shown_any_report_without_harm(content: bytes) -> None:
    found = report.displayable(content)
    if found is None:
        return
    assert report_lines(found)
    assert all(line.isprintable() or "\t" in line for line in report_lines(found))
    assert found.keys() == json.loads(boots_own()).keys() - {"apiVersion"}


def boots_own() -> str:
    written: list[str] = []
    boot = BootReport("compute-3", "compute", [written.append])
    boot.begin("hooks", 1.0)
    boot.end("failed", 1.0, "no way", ["last", "words"])
    boot.finish("failed")
    return written[-1]


def test_people_are_shown_all_that_a_boot_writes() -> None:
    written = boots_own()
    content = json.loads(written)
    assert report.displayable(written.encode()) == {k: v for k, v in content.items() if k != "apiVersion"}
    content["steps"][0]["tail"] = ["\x1b]0;mine\x07", "a\tb"]
    shown = report.displayable(json.dumps(content).encode())
    assert shown is not None
    assert shown["steps"][0]["tail"] == [r"\x1b]0;mine\x07", "a\tb"]
    for broken in (b"{", b"[]", b"{}", b"[" * 100_000, b'{"state": "x"}', b" " * (report.OWN_BYTES + 1)):
        assert report.displayable(broken) is None


def test_a_failure_is_one_printable_line() -> None:
    note = "no\tway\x1b[31m\n|\u202eevil\ud800 " + "y" * 500
    content = json.dumps({"state": "failed", "steps": [{"name": "a\nb", "note": note}]}).encode()
    found = report.checked(content, NOW)
    assert found == Reported("failed", f"step a b: {'no way [31m | evil ' + 'y' * 500}"[: 10 + 200])


@root_only
def test_slow_machines_keep_no_other_out(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine has a few connections; and many together lose the oldest first."""
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(controller.connect("127.0.0.2")) for _ in range(report_server.EACH)]
        for connection in slow:
            connection.sendall(b'{"state": ')
        more = stack.enter_context(controller.connect("127.0.0.2"))
        assert more.recv(1) == b"", "it is refused"
        assert controller.send(FAILED) == b"taken", "another is served while they wait"
        monkeypatch.setattr(report_server, "CONNECTIONS", report_server.EACH)
        third = stack.enter_context(controller.connect("127.0.0.3"))
        assert slow[0].recv(1) == b"", "the oldest gives way"
        third.sendall(b'{"state": "ready", "steps": []}')
        third.shutdown(socket.SHUT_WR)
        assert third.recv(9) == b"taken"
        for connection in (*slow, more):
            connection.close()
        monkeypatch.setattr(report_server, "SECONDS", 0.0)
        late = stack.enter_context(controller.connect("127.0.0.4"))
        assert late.recv(1) == b"", "the time is up"


@root_only
def test_the_folder_does_not_grow_without_end(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_server, "KEPT", 3)
    for number in (2, 3, 4):
        assert controller.send(FAILED, f"127.0.0.{number}") == b"taken"
        os.utime(controller.folder / f"127.0.0.{number}.json", (number, number))
    assert controller.send(FAILED, "127.0.0.3") == b"taken"
    assert controller.send(FAILED, "127.0.0.5") == b"taken"
    kept = sorted(path.name for path in controller.folder.glob("*.json"))
    assert kept == ["127.0.0.3.json", "127.0.0.4.json", "127.0.0.5.json"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="slurm-test-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@root_only
def test_the_service_gives_root_up_and_keeps_reports_over_a_restart(open_folder: Path) -> None:
    """This runs the controller's service: its program, as root, on a port below 1024."""
    free = next(p for p in range(600, 800) if _free(p))
    folder = open_folder / "reports"
    service = report_server.service(sys.executable, ROOT, folder, "nobody", open_folder / "log")
    *argv, call = service.argv
    call = call.replace("'nobody')", f"'nobody', {free})")
    for state in ("booting", "ready"):
        with subprocess.Popen([*argv, call], stdout=subprocess.PIPE, text=True) as daemon:
            try:
                assert daemon.stdout is not None
                assert daemon.stdout.readline() == f"serving on port {free}\n"
                status = Path(f"/proc/{daemon.pid}/status").read_text()
                nobody = pwd.getpwnam("nobody")
                assert f"Uid:\t{nobody.pw_uid}\t{nobody.pw_uid}\t{nobody.pw_uid}" in status
                assert "CapEff:\t0000000000000000" in status
                if state == "ready":
                    assert json.loads((folder / f"{HERE}.json").read_text())["state"] == "booting"
                report_sender.send(HERE, json.dumps({"state": state, "steps": []}).encode(), free)
            finally:
                daemon.terminate()
        assert json.loads((folder / f"{HERE}.json").read_text())["state"] == state
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (nobody.pw_uid, 0o700)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


# --- the node's side --------------------------------------------------------------------------------------


def text(state: str, step: str = "a") -> str:
    return json.dumps({"state": state, "steps": [{"name": step, "state": "running", "note": "n"}]})


def ended() -> bool:
    return not [one for one in threading.enumerate() if one.name == "report"]


def test_a_boot_does_not_wait_for_the_controller_and_sends_its_last_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report_sender, "PAUSE_SECONDS", 0.01)
    gate, sent = threading.Event(), []
    troubles = [OSError("no route")] * 3

    def send(content: bytes) -> None:
        assert gate.wait(60)
        if troubles:
            raise troubles.pop()
        sent.append(json.loads(content))

    sender = Sender(send)
    for number in range(20):
        sender(text("booting", f"s{number}"))
    sender(text("failed", "last"))
    gate.set()
    wait_for(ended)
    assert sent[-1]["state"] == "failed"
    assert [step["name"] for step in sent[-1]["steps"]] == ["last"]
    assert len(sent) <= 2, "of those that came meanwhile only the last"
    assert capsys.readouterr().err == "the controller has no boot report: no route\n", "said once"
    count = len(sent)
    sender(text("booting"))
    wait_for(ended)
    assert len(sent) == count, "the controller has heard of the machine: only the end counts"
    sender(text("ready"))
    wait_for(ended)
    assert sent[-1]["state"] == "ready", "and again after a pause without changes"


@pytest.mark.parametrize(("error", "limit"), [(OSError("down"), 0.0), (PermissionError("no root"), 900.0)])
def test_a_controller_that_never_answers_does_not_hold_the_machine(
    monkeypatch: pytest.MonkeyPatch, error: OSError, limit: float
) -> None:
    monkeypatch.setattr(report_sender, "LIMITS", {"failed": limit})
    tried = []

    def send(content: bytes) -> None:
        tried.append(content)
        raise error

    Sender(send)(text("failed"))
    wait_for(ended)
    assert len(tried) == 1


@root_only
def test_a_controller_that_is_not_there_is_named() -> None:
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        with pytest.raises(OSError, match="refused"):
            report_sender.send(HERE, b"{}", taken.getsockname()[1])
