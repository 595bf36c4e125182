"""Installing Slurm and munge: what is missing, without starting a daemon, or in words why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.errors import EXIT_REFUSED, UserError
from infra.local import packages

# In place of apt-get: notes its arguments and the policy of the moment, and installs by touching files.
APT = """#!/bin/sh
echo "$DEBIAN_FRONTEND $*" >> {log}
[ -x {policy} ] && {{ {policy} start munge; echo "policy $?" >> {log}; }}
[ -e {folder}/broken ] && [ "$1" = install ] && {{ echo "E: Unable to locate package munge"; exit 100; }}
[ "$1" = install ] && for p in "$@"; do touch {folder}/there/$p; done
exit 0
"""
TOOLS = {"systemctl": "#!/bin/sh\necho systemctl $* >> {log}\n", "sudo": "#!/bin/sh\nexit 1\n"}


class Machine:
    """A machine's files, as far as installing goes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.bin, self.there, self.log = folder / "bin", folder / "there", folder / "log"
        self.policy = folder / "policy-rc.d"
        for path in (self.bin, self.there):
            path.mkdir()
        self.log.touch()
        needed = {package: str(self.there / package) for package in packages.NEEDED}
        monkeypatch.setattr(packages, "NEEDED", needed)
        monkeypatch.setattr(packages, "POLICY", str(self.policy))
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        monkeypatch.setattr(packages.shutil, "which", self.which)
        self.tool("apt-get", APT)
        for name, text in TOOLS.items():
            self.tool(name, text)

    def which(self, name: str) -> str | None:
        return str(self.bin / name) if (self.bin / name).exists() else None

    def tool(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text.format(log=self.log, policy=self.policy, folder=self.folder))
        path.chmod(0o755)

    def ensure(self) -> None:
        packages.ensure(self.said.append)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(packages.os, "getuid", lambda: 0)
    return Machine(tmp_path, monkeypatch)


INSTALL = "noninteractive install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge"


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
        (machine.there / package).touch()
    assert packages.missing() == ["slurm-client"]
    machine.ensure()
    assert "noninteractive install -y -qq --no-install-recommends slurm-client" in machine.calls()


def test_a_policy_of_the_machines_own_is_kept(machine: Machine) -> None:
    machine.policy.write_text("#!/bin/sh\nexit 104\n")
    machine.policy.chmod(0o755)
    machine.ensure()
    assert machine.calls()[1] == "policy 104"
    assert machine.policy.read_text() == "#!/bin/sh\nexit 104\n"


def test_a_failed_installation_says_apts_words_and_leaves_no_policy(machine: Machine) -> None:
    (machine.folder / "broken").touch()
    with pytest.raises(UserError, match=r"apt-get install(.|\n)*E: Unable to locate package munge") as caught:
        machine.ensure()
    assert caught.value.exit_code == 1
    assert not machine.policy.exists()


def test_an_installation_that_installs_nothing_is_noticed(machine: Machine) -> None:
    machine.tool("apt-get", "#!/bin/sh\nexit 0\n")
    with pytest.raises(UserError, match="there/munge is not there"):
        machine.ensure()


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda machine: (machine.bin / "apt-get").unlink(), "there is no apt-get here"),
        (
            lambda machine: None,
            "Have an administrator run: apt-get install --no-install-recommends slurmctld",
        ),
    ],
    ids=["no apt", "no sudo"],
)
def test_where_it_cannot_be_had_it_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Machine], None], words: str
) -> None:
    monkeypatch.setattr(packages.os, "getuid", lambda: 1000)
    prepare(machine)
    with pytest.raises(UserError) as caught:
        machine.ensure()
    assert words in str(caught.value)
    assert caught.value.exit_code == EXIT_REFUSED
    assert machine.calls() == []


def test_an_ordinary_user_with_sudo_installs_by_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.os, "getuid", lambda: 1000)
    machine.tool("sudo", '#!/bin/sh\nshift\necho "sudo $1" >> {log}\nexec "$@"\n')
    machine.ensure()
    used = [line.split()[1] for line in machine.calls() if line.startswith("sudo")]
    assert used == ["true", "tee", "chmod", "env", "env", "systemctl", "rm"]
    assert not machine.policy.exists()
