"""Daemons as units: what is written, that systemd accepts it, and the order of the calls."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from infra.aws.launch_templates import BOOT_SCRIPT
from node.bootstrap.command import CommandError
from node.bootstrap.services import Service
from node.bootstrap.systemd_services import SystemdServices, unit_text
from node.elastic import programs
from tests.support.doubles import design
from tests.support.recorded import Recorder, machine

ANALYZE = shutil.which("systemd-analyze")


def service(name: str = "slurmd", user: str | None = None, **env: str) -> Service:
    return Service(name, ("/bin/true", "-D", "a b"), Path("/var/log/slurm/x.out"), env, user)


def test_a_unit_is_written_and_started_each_time(tmp_path: Path) -> None:
    run = Recorder()
    run.answer("systemctl show", "4711\n")
    units = SystemdServices(run, tmp_path / "system")
    service = Service("slurmd", ("/usr/sbin/slurmd", "-D"), tmp_path / "log" / "slurmd.out")
    unit = "slurm-stacks-slurmd.service"
    begun = [f"systemctl restart {unit}", f"systemctl show --property=MainPID --value {unit}"]
    for _ in range(2):
        assert units.start(service) == 4711
    assert run.calls == 2 * begun, "one that systemd does not know, or knows as it is"
    run.calls.clear()
    assert units.start(dataclasses.replace(service, argv=("/usr/sbin/slurmd", "-D", "-b"))) == 4711
    assert run.calls == ["systemctl daemon-reload", *begun], "systemd has read another one"
    assert [path.name for path in (tmp_path / "system").iterdir()] == [unit]
    assert (tmp_path / "log").is_dir()
    run.calls.clear()
    units.stop("slurmd")
    units.stop("slurmctld")
    assert run.calls == [f"systemctl stop {unit}"], "what there is not is not stopped"
    units.keep()


def test_a_unit_that_does_not_start_says_why(tmp_path: Path) -> None:
    run = Recorder()
    run.fail("systemctl restart")
    run.answer("journalctl", "slurmd: fatal: no cgroups\n")
    with pytest.raises(CommandError) as caught:
        SystemdServices(run, tmp_path).start(
            Service("slurmd", ("/usr/sbin/slurmd",), tmp_path / "slurmd.out")
        )
    assert caught.value.__notes__ == ["slurmd: fatal: no cgroups\n"]


def test_slurmds_unit_keeps_jobs_and_owns_its_cgroups() -> None:
    lines = unit_text(service()).splitlines()
    assert {"Delegate=yes", "KillMode=process", "LimitMEMLOCK=infinity", "Restart=always"} <= set(lines)
    assert not [line for line in lines if line.startswith("User=")]
    other = unit_text(service("elastic", "slurm", SLURM_CONF="/etc/slurm/slurm.conf")).splitlines()
    assert {"User=slurm", 'Environment="SLURM_CONF=/etc/slurm/slurm.conf"'} <= set(other)
    assert "Delegate=yes" not in other
    assert "Restart=always" in other


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    assert ANALYZE is not None
    context, _ = machine(tmp_path, "controller", "controller")
    elastic = programs.daemon_service(context.settings, context.settings_file, "root")
    odd = Service(
        "munged", ("/bin/true", 'a "b" \\c %n $HOME ;', "x\ny"), Path("/var/log/m.out"), {"A": "$B %c"}
    )
    controller = dataclasses.replace(service("slurmctld", "root"), before="/bin/true", last="/bin/true")
    assert 'ExecStop=-"/bin/true"' in unit_text(controller).splitlines()
    made = {"slurmd": service(), "slurmctld": controller, "elastic": elastic, "odd": odd}
    for name, one in made.items():
        (tmp_path / f"{name}.service").write_text(unit_text(one))
    # systemd also checks the unit that starts a boot.
    user_data = BOOT_SCRIPT.render(design(isolation="vm", region="eu-west-1"), "bucket", "compute")
    boot = user_data.split("<<'END'\n")[2].split("END\n")[0]
    (tmp_path / "boot.service").write_text(boot.replace("/opt/slurm-stacks/run_loader.py", "/bin/true"))
    for name in [*made, "boot"]:
        done = subprocess.run(
            [ANALYZE, "verify", "--man=no", "--recursive-errors=no", str(tmp_path / f"{name}.service")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        own = [line for line in done.stderr.splitlines() if f"{name}.service" in line]
        assert (done.returncode, own) == (0, []), done.stderr


def test_words_reach_the_program_as_they_are() -> None:
    """systemd reads quotes in a line first, then specifiers, then variables."""
    odd = ['a "b" \\c', "100%", "$HOME ${X}", "import sys; sys.path.insert(0, '/x')", ""]
    line = unit_text(Service("x", tuple(odd), Path("/x")))
    (command,) = [line for line in line.splitlines() if line.startswith("ExecStart=")]
    words, rest = [], command.removeprefix("ExecStart=")
    while rest:
        assert rest[0] == '"'
        end, word = 1, ""
        while rest[end] != '"':
            end += rest[end] == "\\"
            word += rest[end]
            end += 1
        words.append(word.replace("%%", "%").replace("$$", "$"))
        rest = rest[end + 1 :].lstrip()
    assert words == odd
