"""The installation of Slurm and munge: without starting a daemon, or with a message why not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.errors import EXIT_REFUSED, UserError
from operations.local import system_packages
from operations.local.system_packages import ACCOUNTING, NEEDED, PMIX, SLURM
from tests.support import sentences

# In place of apt-get: notes its arguments and the policy of the moment, and installs by touching files.
APT = """#!/bin/sh
echo "$DEBIAN_FRONTEND $*" >> {log}
[ -x {policy} ] && {{ {policy} start munge; echo "policy $?" >> {log}; }}
[ -s {folder}/locked ] && {{
    sed -i 1d {folder}/locked
    echo "E: Could not get lock /var/lib/dpkg/lock (pid 7)"
    exit 100
}}
[ -e {folder}/offline ] && [ "$1" = update ] && {{ echo "E: The repository is gone"; exit 100; }}
[ -e {folder}/broken ] && [ "$1" = install ] && {{ echo "E: Unable to locate package munge"; exit 100; }}
[ "$1" = install ] && for p in "$@"; do cp {folder}/slurm {folder}/there/$p; done
exit 0
"""
# In place of what the packages bring.
PROGRAM = "#!/bin/sh\necho slurm-wlm 22.05.8\n"
TOOLS = {"systemctl": "#!/bin/sh\necho systemctl $* >> {log}\n", "sudo": "#!/bin/sh\nexit 1\n"}


class Machine:
    """The files of a machine that an installation needs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.bin, self.there, self.log = folder / "bin", folder / "there", folder / "log"
        self.policy = folder / "policy-rc.d"
        for path in (self.bin, self.there):
            path.mkdir()
        self.log.touch()
        (folder / "slurm").write_text(PROGRAM)
        (folder / "slurm").chmod(0o755)
        for purpose in (SLURM, ACCOUNTING, PMIX):
            needed = {package: str(self.there / package) for package in NEEDED[purpose]}
            monkeypatch.setitem(NEEDED, purpose, needed)
        monkeypatch.setattr(system_packages, "POLICY", str(self.policy))
        monkeypatch.setattr(system_packages, "PMIX_PLUGIN", str(self.there / "mpi_pmix.so"))
        monkeypatch.setattr(system_packages, "PMIX_BY_VERSION", str(self.there / "libpmix.so.2"))
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        monkeypatch.setattr(shutil, "which", self.which)
        self.tool("apt-get", APT)
        for name, text in TOOLS.items():
            self.tool(name, text)

    def which(self, name: str) -> str | None:
        return str(self.bin / name) if (self.bin / name).exists() else None

    def tool(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text.format(log=self.log, policy=self.policy, folder=self.folder))
        path.chmod(0o755)

    def ensure(self, *, accounting: bool = False) -> None:
        system_packages.ensure(self.said.append, accounting=accounting)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    return Machine(tmp_path, monkeypatch)


INSTALL = (
    "noninteractive install -y -qq --no-install-recommends --no-remove slurmctld slurmd slurm-client munge"
)


def test_what_is_missing_is_installed_with_a_policy_against_daemons(machine: Machine) -> None:
    machine.ensure()
    assert machine.calls() == [
        "noninteractive update -qq",
        "policy 101",
        INSTALL,
        "policy 101",
        "systemctl disable --quiet slurmctld slurmd munge",
    ]
    assert not machine.policy.exists(), "services of later packages are not ours to forbid"
    assert len(machine.said) == 1
    assert "their services stay off" in machine.said[0]
    machine.ensure()
    assert len(machine.calls()) == 5, "all is there"
    assert len(machine.said) == 1


def test_only_what_is_missing(machine: Machine) -> None:
    for package in ("slurmctld", "slurmd", "munge"):
        shutil.copy(machine.folder / "slurm", machine.there / package)
    assert system_packages.missing() == ["slurm-client"]
    machine.ensure()
    assert "noninteractive install -y -qq --no-install-recommends --no-remove slurm-client" in machine.calls()


@pytest.mark.parametrize(
    ("release", "there", "missing"),
    [
        ("22.05.8", [], []),
        ("22.05.8", ["mpi_pmix.so"], ["libpmix-dev"]),
        ("22.05.8", ["mpi_pmix.so", "libpmix.so.2"], ["libpmix-dev"]),
        ("22.05.8", ["mpi_pmix.so", "libpmix-dev"], []),
        ("23.11.4", ["mpi_pmix.so"], ["libpmix-dev"]),
        ("23.11.4", ["mpi_pmix.so", "libpmix.so.2"], []),
        ("of no release", ["mpi_pmix.so"], []),
    ],
)
def test_pmix_is_missing_where_slurm_would_load_it(
    machine: Machine, release: str, there: list[str], missing: list[str]
) -> None:
    """The name that Slurm loads: `_libpmix_open` in its mpi_pmix.c, at the tags 22-05-8 and 23-11-4."""
    (machine.folder / "slurm").write_text(PROGRAM.replace("22.05.8", release))
    machine.ensure() if release[0].isdigit() else shutil.copy(
        machine.folder / "slurm", machine.there / "slurmctld"
    )
    for name in there:
        (machine.there / name).touch()
    assert system_packages.missing_for_pmix() == missing


def test_a_slurm_that_was_built_without_pmix(machine: Machine) -> None:
    """Debian testing's package, whose folder of plugins has mpi_pmi2.so alone."""
    assert not system_packages.has_no_pmix(), "what is not installed lacks nothing"
    machine.ensure()
    assert system_packages.has_no_pmix()
    (machine.there / "mpi_pmix.so").touch()
    assert not system_packages.has_no_pmix()


def test_pmix_is_installed_and_a_cluster_comes_up_without_it(machine: Machine) -> None:
    machine.ensure()
    (machine.there / "mpi_pmix.so").touch()
    (machine.folder / "broken").touch()
    system_packages.add_pmix(machine.said.append)
    assert machine.said[-1] == (
        "`srun --mpi=pmix` does not work here, and all else does: "
        "apt-get install --no-install-recommends --no-remove libpmix-dev failed"
    )
    (machine.folder / "broken").unlink()
    system_packages.add_pmix(machine.said.append)
    assert (machine.there / "libpmix-dev").exists()
    calls = len(machine.calls())
    system_packages.add_pmix(machine.said.append)
    assert len(machine.calls()) == calls, "it is there"


FOR_ACCOUNTING = ["slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server-core", "mariadb-client-core"]


def test_accountings_packages_come_with_the_others_where_it_is_asked_for(machine: Machine) -> None:
    machine.ensure(accounting=True)
    assert f"{INSTALL} {' '.join(FOR_ACCOUNTING)}" in machine.calls()
    assert machine.calls()[-1] == "systemctl disable --quiet slurmctld slurmd munge slurmdbd"
    assert system_packages.missing(ACCOUNTING) == []
    assert system_packages.check_accounting() == ""


def test_accountings_packages_come_later(machine: Machine) -> None:
    machine.ensure()
    assert system_packages.missing(ACCOUNTING) == FOR_ACCOUNTING, "who does not ask for it does not get it"
    words = (
        f"slurm-stacks:cluster.slurm.accounting: true needs {', '.join(FOR_ACCOUNTING)}: `up` installs them"
    )
    assert system_packages.check_accounting().startswith(words)
    machine.ensure(accounting=True)
    line = "noninteractive install -y -qq --no-install-recommends --no-remove " + " ".join(FOR_ACCOUNTING)
    assert line in machine.calls()


def test_a_plugin_is_found_in_the_folder_of_any_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x86_64-linux-gnu" / "slurm-wlm" / "plugin.so"
    plugin = {"the-plugin": f"{tmp_path}/*/slurm*/plugin.so"}
    monkeypatch.setitem(NEEDED, ACCOUNTING, plugin)
    assert system_packages.missing(ACCOUNTING) == ["the-plugin"]
    file.parent.mkdir(parents=True)
    file.touch()
    assert system_packages.missing(ACCOUNTING) == []


@pytest.mark.parametrize("apt", [True, False])
def test_where_accountings_packages_cannot_be_had_it_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, apt: bool
) -> None:
    machine.ensure()
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    if not apt:
        (machine.bin / "apt-get").unlink()
    before = machine.calls()
    for refused in (system_packages.check_accounting, lambda: machine.ensure(accounting=True)):
        code = "packages.refused" if apt else "packages.no-apt"
        with sentences.raises(code, "slurm-stacks:cluster.slurm.accounting: true", "slurmdbd") as caught:
            refused()
        assert caught.value.exit_code == EXIT_REFUSED
        assert ("apt-get install --no-install-recommends --no-remove slurmdbd" in str(caught.value)) == apt
    assert machine.calls() == before


def test_a_policy_of_the_machines_own_is_kept(machine: Machine) -> None:
    machine.policy.write_text("#!/bin/sh\nexit 104\n")
    machine.policy.chmod(0o755)
    machine.ensure()
    assert machine.calls()[1] == "policy 104"
    assert machine.policy.read_text() == "#!/bin/sh\nexit 104\n"


def test_a_failed_installation_says_apts_words_and_leaves_no_policy(machine: Machine) -> None:
    (machine.folder / "broken").touch()
    with sentences.raises("packages.not-installed", "E: Unable to locate package munge") as caught:
        machine.ensure()
    assert caught.value.exit_code == 1
    assert not machine.policy.exists()


def test_an_installation_that_installs_nothing_is_noticed(machine: Machine) -> None:
    machine.tool("apt-get", "#!/bin/sh\nexit 0\n")
    with sentences.raises("packages.not-there", "there/munge"):
        machine.ensure()


@pytest.mark.parametrize(
    ("prepare", "code", "named"),
    [
        (lambda machine: (machine.bin / "apt-get").unlink(), "packages.no-apt", "slurmctld"),
        (
            lambda machine: None,
            "packages.refused",
            "apt-get install --no-install-recommends --no-remove slurmctld",
        ),
    ],
    ids=["no apt", "no sudo"],
)
def test_where_it_cannot_be_had_it_is_refused(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[Machine], None],
    code: str,
    named: str,
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    prepare(machine)
    with sentences.raises(code, named) as caught:
        machine.ensure()
    assert caught.value.exit_code == EXIT_REFUSED
    assert machine.calls() == []


def test_an_ordinary_user_with_sudo_installs_by_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    machine.tool("sudo", '#!/bin/sh\nshift\necho "sudo $1" >> {log}\nexec "$@"\n')
    machine.ensure()
    used = [line.split()[1] for line in machine.calls() if line.startswith("sudo")]
    assert used == ["true", "tee", "chmod", "env", "env", "systemctl", "rm"]
    assert not machine.policy.exists()


# --- an administrator's, another package manager's, and the network's affairs ----------------------------


def test_another_package_manager_is_waited_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_packages, "LOCK_PAUSE", 0.01)
    (machine.folder / "locked").write_text("once\ntwice\n")
    machine.ensure()
    assert system_packages.missing() == []
    waiting = [line for line in machine.said if "another package manager is at work" in line]
    assert len(waiting) == 1
    assert "Could not get lock /var/lib/dpkg/lock (pid 7)" in waiting[0]


def test_a_package_manager_that_never_ends_is_not_waited_for_for_ever(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_packages, "LOCK_PAUSE", 0.01)
    monkeypatch.setattr(system_packages, "LOCK_SECONDS", 0.05)
    (machine.folder / "locked").write_text("again\n" * 1000)
    with sentences.raises("packages.not-installed", "/var/lib/dpkg/lock (pid 7)"):
        machine.ensure()
    assert not machine.policy.exists()


def test_without_fresh_lists_those_that_are_there_do(machine: Machine) -> None:
    (machine.folder / "offline").touch()
    machine.ensure()
    assert system_packages.missing() == []


def test_without_lists_and_packages_both_are_said(machine: Machine) -> None:
    (machine.folder / "offline").touch()
    (machine.folder / "broken").touch()
    with pytest.raises(UserError) as caught:
        machine.ensure()
    assert str(caught.value).splitlines()[1:] == [
        "E: Unable to locate package munge",
        "apt-get update had failed before it:",
        "E: The repository is gone",
    ]
    assert caught.value.exit_code == 1


def test_no_sudo_at_all_is_no_sudo(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    (machine.bin / "sudo").unlink()
    monkeypatch.setenv("PATH", str(machine.bin))
    with sentences.raises("packages.refused", "apt-get install") as caught:
        machine.ensure()
    assert caught.value.exit_code == EXIT_REFUSED


def test_a_policy_that_a_killed_installation_has_left_goes(machine: Machine) -> None:
    machine.policy.write_text(system_packages.OUR_POLICY)
    machine.policy.chmod(0o755)
    machine.ensure()
    assert not machine.policy.exists(), "nothing on this machine could start its services"
    machine.policy.write_text(system_packages.OUR_POLICY)
    machine.ensure()
    assert not machine.policy.exists(), "with nothing to install, too"


def test_a_policy_that_cannot_be_written_stops_the_installation(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_packages, "POLICY", str(machine.folder / "no" / "such" / "policy-rc.d"))
    with sentences.raises("packages.policy") as caught:
        machine.ensure()
    assert caught.value.exit_code == EXIT_REFUSED
    assert machine.calls() == []


def test_ctrl_c_waits_for_apts_own_end(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If dpkg is killed, it refuses every later installation until somebody repairs it."""
    machine.tool(
        "apt-get",
        "#!/bin/sh\ntrap 'echo asked >> {log}; exit 100' INT\necho up >> {log}\nwhile :; do sleep 1; done\n",
    )
    monkeypatch.setattr(system_packages, "HEARTBEAT_SECONDS", 0.1)

    def press(said: str) -> None:
        machine.said.append(said)
        if "so far" in said and machine.calls() == ["up"]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        system_packages.ensure(press)
    assert machine.calls() == ["up", "asked"]
    assert any("brings what it has begun to an end" in line for line in machine.said)
    assert not machine.policy.exists()


# --- a Slurm that is there and does not do ---------------------------------------------------------------


@pytest.fixture
def installed(machine: Machine) -> Machine:
    for package in NEEDED[SLURM]:
        shutil.copy(machine.folder / "slurm", machine.there / package)
    return machine


@pytest.mark.parametrize(
    ("daemon", "named"),
    [
        ("#!/bin/sh\necho slurm-wlm 21.08.5\n", "Slurm 21.08 is too old: 22.05"),
        ("#!/bin/sh\necho libmunge.so.2: cannot open >&2; exit 127\n", "libmunge.so.2: cannot open"),
        ("#!/bin/sh\necho nonsense\n", "no Slurm version in 'nonsense'"),
        ("", "Exec format error"),
    ],
    ids=["old", "a library is missing", "no version", "no program"],
)
def test_a_slurm_that_does_not_do_is_refused(installed: Machine, daemon: str, named: str) -> None:
    (installed.there / "slurmctld").write_text(daemon)
    with sentences.raises("packages.unsuitable", named, installed.there / "slurmctld") as caught:
        installed.ensure()
    assert caught.value.exit_code == EXIT_REFUSED
    assert installed.calls() == [], "nothing is installed over what an administrator has chosen"


@pytest.mark.parametrize("daemon", ["slurmctld", "slurmd"])
def test_the_emulator_is_refused(installed: Machine, daemon: str) -> None:
    emulator = installed.folder / f"{daemon}-wlm-emulator"
    shutil.copy(installed.folder / "slurm", emulator)
    (installed.there / daemon).unlink()
    (installed.there / daemon).symlink_to(emulator)
    with sentences.raises("packages.unsuitable", "apt-get remove slurm-wlm-emulator") as caught:
        installed.ensure()
    assert caught.value.exit_code == EXIT_REFUSED


def test_the_slurm_of_this_machine_does() -> None:
    if system_packages.missing():
        pytest.skip("Slurm is not installed")
    assert system_packages.unsuitable() is None
