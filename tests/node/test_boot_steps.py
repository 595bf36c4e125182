"""Tests of the steps of a boot, alone and together, with the folders of a process machine."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.bootstrap import daemons, process_steps, steps
from node.bootstrap import main as boot
from node.bootstrap.context import ALL, Context, SkipStep, Step
from node.bootstrap.report import BootReport, failure, file_sink
from node.bootstrap.step_runner import run_steps
from node.bootstrap.steps import STEPS
from node.design import time_limits
from node.design.accelerators import Accelerator
from node.design.folders import Folders
from node.design.health import Health
from node.design.model import INLINE, AwsPartition, ClusterDesign, Hook, Image, Partition
from node.design.sites import LocalSite
from node.design.storage import Mount
from node.health.programs import PRETENDED
from node.slurm import hardware
from tests.support.doubles import FakeServices, design, settings


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short path, because sockets are below it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Context]:
    """Makes a machine of a role before its boot. Its report is in `report.json`."""

    def make(
        role: str = "compute", design: ClusterDesign | None = None, host: str = "debug-0", **site: Any
    ) -> Context:
        its = settings(tmp_path, design, **site)
        report = BootReport(host, role, [file_sink(tmp_path / "report.json")])
        file = tmp_path / "settings.json"
        return Context(its, file, role, host, Folders(its), FakeServices(), report)

    return make


def reported(context: Context) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(context.settings.site.root) / "report.json").read_text())
    return found


def step(run: Callable[[Context], str], name: str = "a", timeout: float = 120) -> Step:
    return Step(name, timeout, ALL, run)


def fail(_context: Context) -> str:
    raise OSError("it broke")


def skip(_context: Context) -> str:
    raise SkipStep("nothing here")


# --- running steps ---------------------------------------------------------------------------------------


def test_steps_run_in_order_and_are_reported(machine: Callable[..., Context]) -> None:
    context = machine()
    seen: list[str] = []

    def during(_context: Context) -> str:
        seen.append(reported(context)["steps"][-1]["state"])
        return "did it"

    assert run_steps(context, [step(during, "one"), step(skip, "two"), step(during, "three")]) is True
    report = reported(context)
    assert [(s["name"], s["state"], s["note"]) for s in report["steps"]] == [
        ("one", "done", "did it"),
        ("two", "skipped", "nothing here"),
        ("three", "done", "did it"),
    ]
    assert seen == ["running", "running"], "whoever looks during a step sees which one it is"
    assert report["state"] == "ready"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), "no limit strikes after the boot"


def test_a_failing_step_ends_the_boot_with_its_last_lines(machine: Callable[..., Context]) -> None:
    context = machine()
    never = step(lambda _context: pytest.fail("ran after a failure"), "never")
    assert run_steps(context, [step(fail), never]) is False
    report = reported(context)
    (only,) = report["steps"]
    assert (only["state"], only["note"], report["state"]) == ("failed", "it broke", "failed")
    assert "tail" not in only, "a failure that was foreseen needs no traceback"


def test_a_node_whose_devices_fail_does_not_register(machine: Callable[..., Context]) -> None:
    """The tools are this machine's, or stand-ins in the run directory where devices are pretended."""
    gpu = Partition("gpu", "tiny", 2, 1000, 0, 1, Accelerator("v100", 2, simulated=True))
    context = machine(design=design(gpu, health=Health(skip=("xid", "dcgm"))), host="gpu-0")
    tool = Path(context.settings.site.root) / PRETENDED / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho '0, 0000:00:1E.0, 0, No, No, No, Not Active'\n")
    tool.chmod(0o755)
    checks = next(s for s in STEPS if s.name == "health")
    assert run_steps(context, [checks, step(fail)]) is False
    (only,) = reported(context)["steps"]
    assert only["note"] == "health: nvidia-smi shows 1 of 2 GPUs"
    one = dataclasses.replace(gpu, accelerator=Accelerator("v100", 1, simulated=True))
    sound = machine(design=design(one, health=Health()), host="gpu-0")
    assert checks.run(sound) == "1 v100: no fault found"


def test_a_failure_that_nobody_foresaw_has_its_place(machine: Callable[..., Context]) -> None:
    context = machine()
    assert run_steps(context, [step(lambda _context: str(dict[str, str]()["x"]))]) is False
    (only,) = reported(context)["steps"]
    assert only["note"] == "'x'"
    assert any("test_boot_steps.py" in line for line in only["tail"])


def test_a_failed_commands_words_are_on_the_report(machine: Callable[..., Context]) -> None:
    context = machine()

    def run(_context: Context) -> str:
        command = ["sh", "-c", "echo no such device >&2; exit 4"]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    assert run_steps(context, [step(run)]) is False
    (only,) = reported(context)["steps"]
    assert "exit status 4" in only["note"]
    assert only["tail"] == ["no such device"]


def test_a_hanging_step_is_ended_at_its_limit(machine: Callable[..., Context]) -> None:
    context = machine()
    before = signal.getsignal(signal.SIGALRM)
    assert run_steps(context, [step(lambda _c: time.sleep(600) or "", "slow", 0.2)]) is False  # type: ignore[func-returns-value]
    assert reported(context)["steps"][0]["note"] == "step slow was not done after 0.2 s"
    assert signal.getsignal(signal.SIGALRM) is before


def test_what_a_step_waits_for_is_on_the_report(machine: Callable[..., Context], tmp_path: Path) -> None:
    log = tmp_path / "munged.out"
    log.write_text("\n".join(f"line {i}" for i in range(30)) + "\nmunged: Error: key is insecure\n")
    context = machine()

    def there() -> bool:
        # The step's time limit ends a moment after the wait has begun, however late that is.
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        return False

    waiting = step(lambda _c: daemons.wait("munged's socket", there, log) or "", "ready", 600)  # type: ignore[func-returns-value]
    assert run_steps(context, [waiting]) is False
    tail = reported(context)["steps"][0]["tail"]
    assert f"waited for munged's socket; the end of {log}:" in tail
    assert tail[-1] == "munged: Error: key is insecure"


def test_the_order_is_that_of_the_contract() -> None:
    # `secrets` and `ready` exist twice, because hosts and nodes have different limits.
    assert list(dict.fromkeys(s.name for s in STEPS if s.isolations is None)) == [
        "users", "hosts", "secrets", "disks", "mounts", "slurm", "accelerators", "hooks", "health",
        "ready",
    ]  # fmt: skip
    assert [s.name for s in STEPS if s.isolations is not None] == [
        "metadata", "packages", "logs", "environment",
    ]  # fmt: skip
    names = [s.name for s in STEPS]
    assert names.index("disks") + 1 == names.index("packages") == names.index("mounts") - 1
    assert all(0 < s.timeout <= 3600 for s in STEPS)
    assert [s.name for s in STEPS if "controller" not in s.roles] == [
        "secrets",
        "accelerators",
        "health",
        "ready",
    ]
    assert names.index("users") < names.index("metadata") < names.index("secrets"), "no user sees the key"
    of_hosts = ["secrets", "ready", "environment"]
    assert [s.name for s in STEPS if "compute" not in s.roles] == of_hosts


def test_a_nodes_time_covers_what_its_steps_may_take() -> None:
    """Otherwise Slurm gives the node back while it installs packages, and the next one too."""
    mine = {s.name: s.timeout for s in STEPS if "compute" in s.roles}
    before = [*list(mine)[: list(mine).index("ready")], "ready"]
    gpu = Partition("gpu", "p3dn.24xlarge", 96, 9, 0, 1, Accelerator("v100", 8), aws=AwsPartition(efa=1))
    lustre = (Mount("/fsx", "fsx_lustre"),)
    hooks = (Hook("compute", "a.sh", timeout=60), Hook("all", "b.sh", timeout=5), Hook("login", "c.sh"))
    cluster_design = design(gpu, isolation="vm", provider="aws", mounts=lustre, hooks=hooks, health=Health())
    steps = sum(mine[name] for name in before if name != "hooks")
    assert time_limits.boot(cluster_design, gpu) == time_limits.START + time_limits.RESTART + steps + 65
    plain = dataclasses.replace(gpu, accelerator=None, aws=AwsPartition())
    assert (
        time_limits.boot(cluster_design, gpu) - time_limits.boot(cluster_design, plain)
        == mine["accelerators"] + mine["health"]
    )
    baked = dataclasses.replace(cluster_design, image=Image(bake=True))
    assert time_limits.boot(baked, gpu) < time_limits.boot(cluster_design, plain) - 1000
    own = dataclasses.replace(gpu, image="ami-1")
    assert time_limits.boot(baked, own) == time_limits.boot(cluster_design, own), "what is in it is not known"


def test_boot_reports_to_the_machine_and_to_the_bucket_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = FakeServices()
    stayed: list[bool] = []
    monkeypatch.setattr(services, "keep", lambda: stayed.append(True), raising=False)
    monkeypatch.setattr(boot, "InitServices", lambda _node: services)
    monkeypatch.setattr(boot, "STEPS", [step(skip), Step("other", 1, frozenset({"login"}), fail)])
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(dataclasses.asdict(settings(tmp_path))))
    boot.bootstrap(file, "compute", "debug-3", str(tmp_path / "bucket"))
    own = tmp_path / "lib" / "boot" / "debug-3.json"
    assert own.read_text() == (tmp_path / "bucket" / "boot" / "debug-3.json").read_text()
    report = json.loads(own.read_text())
    assert [s["name"] for s in report["steps"]] == ["a"], "another role's step"
    assert report["state"] == "ready"
    assert stayed == [True]


# --- the steps -------------------------------------------------------------------------------------------


def test_another_user_is_refused(machine: Callable[..., Context]) -> None:
    with pytest.raises(PermissionError, match="belongs to somebody-else"):
        process_steps.users(machine(user="somebody-else"))
    assert "Slurm runs as" in process_steps.users(machine())


def test_the_munge_key_is_made_on_the_controller_only(
    machine: Callable[..., Context], tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError, match=r"munge\.key: the controller makes it"):
        process_steps.secrets(machine("compute"))
    assert process_steps.secrets(machine("controller")) == "made the munge key"
    key = tmp_path / "munge.key"
    content = key.read_bytes()
    assert len(content) == 1024
    assert stat.S_IMODE(key.stat().st_mode) == 0o400
    assert process_steps.secrets(machine("controller")) == "the munge key is there"
    assert process_steps.secrets(machine("compute")) == "the munge key is there"
    assert key.read_bytes() == content, "a new key would lock every running machine out"
    key.unlink()
    key.write_bytes(b"short")
    process_steps.secrets(machine("controller"))
    assert len(key.read_bytes()) == 1024, "what an interrupted boot left"


def test_a_full_disk_is_said_in_words(machine: Callable[..., Context], monkeypatch: Any) -> None:
    assert "MiB free" in steps.disks(machine())
    monkeypatch.setattr(steps, "MIN_FREE_MIB", 10**12)
    with pytest.raises(OSError, match=r"MiB are free, 1000000000000 are needed"):
        steps.disks(machine())


def test_shared_folders_are_made_and_must_be_writable(
    machine: Callable[..., Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_steps.mounts(machine())
    assert (tmp_path / "shared").is_dir()
    assert (tmp_path / "apps").is_dir()
    # root may write everywhere, so the result is faked.
    monkeypatch.setattr(os, "access", lambda path, _mode: not str(path).endswith("apps"))
    with pytest.raises(PermissionError, match="apps is not writable"):
        process_steps.mounts(machine())


def slurmctld(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake that only prints its version."""
    (folder / "fake").mkdir()
    fake = folder / "fake" / "slurmctld"
    fake.write_text("#!/bin/sh\necho slurm-wlm 23.11.4\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    (folder / "code" / "current").mkdir(parents=True)


def test_slurm_is_rendered(
    machine: Callable[..., Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match="the controller has not made it yet"):
        process_steps.slurm(machine("compute"))
    slurmctld(tmp_path, monkeypatch)
    context = machine("controller")
    assert process_steps.slurm(context) == "slurm-wlm 23.11.4"
    assert context.report.content["facts"] == {"slurm": "slurm-wlm 23.11.4"}
    conf = (tmp_path / "etc" / "slurm.conf").read_text()
    assert "ClusterName=t" in conf
    assert "cloud_reg_addrs" not in conf, "an option of 22.05"
    assert {p.name for p in (tmp_path / "code" / "current" / "bin").iterdir()} >= {"resume", "slurm-stacks"}
    assert not list((tmp_path / "etc").glob("*.new"))
    assert (tmp_path / "etc" / "version").read_text() == "slurm-wlm 23.11.4", "for the nodes"
    assert process_steps.slurm(machine("compute")) == "the controller's configuration is there"


@pytest.mark.parametrize("there", [True, False])
def test_a_node_without_its_accelerators_does_not_register(
    machine: Callable[..., Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    with pytest.raises(SkipStep):
        steps.accelerators(machine())
    simulated = Partition("debug", "local.small", 1, 1, 0, 1, Accelerator("v100", 4, simulated=True))
    assert steps.accelerators(machine(design=design(simulated))) == "4 simulated v100"
    devices = [tmp_path / "nvidia0", tmp_path / "nvidia1"]
    for device in devices[: 2 if there else 1]:
        device.touch()
    files = ",".join(map(str, devices))
    monkeypatch.setattr(hardware, "device_files", lambda _accelerator: files)
    real = machine(design=design(Partition("debug", "p3", 1, 1, 0, 1, Accelerator("v100", 2))))
    if there:
        assert steps.accelerators(real) == "2 v100"
    else:
        with pytest.raises(FileNotFoundError, match="nvidia1"):
            steps.accelerators(real)


@pytest.fixture
def hooked(machine: Callable[..., Context], tmp_path: Path) -> Callable[..., Context]:
    folder = tmp_path / "code" / "current" / "hooks"
    folder.mkdir(parents=True)

    def make(*scripts: str, role: str = "compute", of: str = "compute", timeout: int = 600) -> Context:
        found = []
        for number, text in enumerate(scripts):
            (folder / f"{number}-h.sh").write_text(f"#!/bin/sh\n{text}\n")
            found.append(Hook(of, "some/h.sh", ("one", "two words"), timeout))
        return machine(role, design(hooks=tuple(found)))

    return make


def test_hooks_run_in_order_with_their_arguments(hooked: Callable[..., Context], tmp_path: Path) -> None:
    out = tmp_path / "out"
    write = f'echo "$# $2 $SLURM_STACKS_ROLE $SLURM_STACKS_HOST" >> {out}'
    assert steps.hooks(hooked(write, f"echo second >> {out}")).splitlines()[0] == "ran 2"
    assert out.read_text() == "2 two words compute debug-0\nsecond\n"


def test_hooks_of_other_roles_do_not_run(hooked: Callable[..., Context]) -> None:
    with pytest.raises(SkipStep, match="none for this role"):
        steps.hooks(hooked("exit 9", of="login"))
    with pytest.raises(SkipStep):
        steps.hooks(hooked())
    assert steps.hooks(hooked("true", of="all")).splitlines()[0] == "ran 1"


def test_the_report_has_the_last_lines_of_a_hook_that_ended_well(hooked: Callable[..., Context]) -> None:
    context = hooked("seq 9", "echo done >&2")
    assert run_steps(context, [step(steps.hooks, "hooks")])
    made = reported(context)["steps"][0]
    assert (made["state"], made["note"]) == ("done", "ran 2")
    first, *lines = made["tail"]
    assert first.startswith("hook 0 (some/h.sh) took ")
    assert lines[:5] == ["5", "6", "7", "8", "9"]
    assert lines[6:] == ["done"]


def test_a_script_in_the_stack_file_runs_with_its_arguments(
    machine: Callable[..., Context], tmp_path: Path
) -> None:
    text = f'#!/bin/sh\necho "$1 $SLURM_STACKS_HOST" >> {tmp_path}/out\n'
    context = machine("compute", design(hooks=(Hook("all", INLINE, ("a b",), text=text),)))
    for _ in range(2):
        assert steps.hooks(context).startswith("ran 1\nhook 0 (script) took ")
    assert (tmp_path / "out").read_text() == "a b debug-0\n" * 2


def test_a_failing_hook_stops_the_boot_with_its_words(
    hooked: Callable[..., Context], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    context = hooked("echo out; echo no driver >&2; exit 3", f"touch {tmp_path}/second")
    assert run_steps(context, [step(steps.hooks, "hooks")]) is False
    failed = reported(context)["steps"][0]
    assert failed["note"] == "hook 0 (some/h.sh) ended with status 3"
    log = context.path(context.folders.log) / "hook-0-debug-0.log"
    assert failed["tail"] == [f"the end of {log}:", "out", "no driver"]
    assert not (tmp_path / "second").exists()
    told = failure(tmp_path / "report.json")
    assert told == "step hooks: hook 0 (some/h.sh) ended with status 3: no driver"
    # The boot's log has the message alone, without the stack of this program.
    err = capfd.readouterr().err
    assert err.splitlines() == [f"step hooks failed: {failed['note']}", *failed["tail"]]


def test_a_hook_that_fails_without_a_word(hooked: Callable[..., Context], tmp_path: Path) -> None:
    context = hooked("echo; exit 3")
    assert run_steps(context, [step(steps.hooks, "hooks")]) is False
    told = failure(tmp_path / "report.json")
    assert told == "step hooks: hook 0 (some/h.sh) ended with status 3: it printed nothing"


def test_a_hook_has_its_own_limit(hooked: Callable[..., Context]) -> None:
    context = hooked("exec sleep 600", timeout=1)
    assert run_steps(context, [step(steps.hooks, "hooks", 300)]) is False
    assert reported(context)["steps"][0]["note"] == "hook 0 (some/h.sh) was not done after 1 s"


def test_a_hook_may_leave_a_daemon_behind(hooked: Callable[..., Context], tmp_path: Path) -> None:
    """A hook that starts a service (Docker, a monitor) must not wait for that service's end."""
    pid = tmp_path / "pid"
    try:
        # With a wait the step would exceed its time limit.
        assert steps.hooks(hooked(f"sleep 600 & echo $! > {pid}", timeout=120)).splitlines()[0] == "ran 1"
        os.kill(int(pid.read_text()), 0)
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_ready_starts_a_nodes_slurmd_and_nothing_on_a_login_machine(
    machine: Callable[..., Context], tmp_path: Path
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "version").write_text("slurm-wlm 23.11.4")
    context = machine()
    assert process_steps.ready(context) == "slurmd runs"
    (service,) = context.services.started  # type: ignore[attr-defined]
    # With -b a new node counts as booted after its request.
    assert service.argv == (
        "/usr/sbin/slurmd", "-D", "-b", "-N", "debug-0", "-f", str(tmp_path / "etc" / "slurm.conf"),
    )  # fmt: skip
    assert service.env == {"SLURM_CONF": str(tmp_path / "etc" / "slurm.conf")}
    login = machine("login", host="login")
    process_steps.ready(login)
    assert login.services.started == []  # type: ignore[attr-defined]


def test_a_new_node_has_nothing_of_the_last_one_in_the_way_of_a_job_that_starts_again(
    machine: Callable[..., Context], tmp_path: Path
) -> None:
    """Slurm's PMIx ends a step whose folder is there (`pmixp_mkdir`); a killed node has not removed it."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "version").write_text("slurm-wlm 22.05.8")
    context = machine()
    spool = tmp_path / "spool"
    left = [spool / "debug-0" / "pmix.7.0", spool / "debug-0" / "spmix_appdir_0_7.0"]
    others = [spool / "debug-1" / "pmix.7.0", spool / "debug-0" / "cred_state"]
    for folder in (*left, *others):
        folder.mkdir(parents=True)
    process_steps.ready(context)
    assert not any(folder.exists() for folder in left)
    assert all(folder.exists() for folder in others)


# --- daemons ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "host", "offset", "cure"),
    [
        ("controller", "controller", 0, "`up` chooses others when it runs again"),
        ("compute", "debug-2", 3, "end it; or `down` and `up` choose other ports"),
    ],
)
def test_a_port_that_is_taken_is_named_with_who_has_it(
    machine: Callable[..., Context],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    role: str,
    host: str,
    offset: int,
    cure: str,
) -> None:
    monkeypatch.setattr(daemons, "PORT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        base = int(server.getsockname()[1]) - offset
        context = machine(role, host=host, slurmctld_port=base, slurmd_port=base + 1)
        assert run_steps(context, [step(process_steps.ready, "ready")]) is False
    (only,) = reported(context)["steps"]
    assert only["note"].startswith(f"port {base + offset} of {host} is taken by ")
    assert f"(pid {os.getpid()})" in only["note"]
    assert only["note"].endswith(cure)
    assert "tail" not in only
    assert isinstance(context.services, FakeServices)
    assert context.services.started == [], "it would end and be started again for ever"


def test_a_port_that_is_given_back_meanwhile_is_none(
    machine: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's former machine has just ended."""
    answers = iter([False, False, True])
    monkeypatch.setattr(daemons.ports, "free", lambda _port: next(answers))  # type: ignore[attr-defined]
    daemons.check_port(machine(), 1)
    assert list(answers) == []


def test_a_daemon_that_ends_as_it_starts_is_not_waited_for(
    machine: Callable[..., Context], tmp_path: Path
) -> None:
    log = tmp_path / "munged.out"
    log.write_text("munged: Error: the key is no key\n")
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        waiting = step(lambda _c: daemons.wait("munged", lambda: False, log, child.pid) or "", "ready", 120)  # type: ignore[func-returns-value]
        context = machine()
        assert run_steps(context, [waiting]) is False
    (only,) = reported(context)["steps"]
    assert only["note"] == "munged ended as it started"
    assert only["tail"][-1] == "munged: Error: the key is no key"


def test_on_process_machines_munged_needs_no_folder_that_others_can_enter(
    machine: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run directory is its owner's alone."""
    monkeypatch.setattr(daemons, "wait", lambda *_: None)
    monkeypatch.setattr(daemons, "controller", lambda _context: None)
    monkeypatch.setattr(daemons, "check_port", lambda _context, _port: None)
    context = machine("controller", host="controller")
    process_steps.ready(context)
    (munged,) = context.services.started  # type: ignore[attr-defined]
    assert munged.argv[-1] == "--force"


def test_a_controller_without_a_namespace_does_not_start_on_another_address(
    machine: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld would listen on the address of this host's name, and nobody would find it."""
    monkeypatch.setattr(socket, "gethostname", lambda: "lab-7")
    context = machine("controller", host="controller", cloud=LocalSite(loopback_only=True))
    with pytest.raises(OSError, match="the controller has no namespace"):
        process_steps.ready(context)
    assert context.services.started == []  # type: ignore[attr-defined]
