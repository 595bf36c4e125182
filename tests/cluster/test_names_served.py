"""Names between machines: the step `hosts`, a real dnsmasq with our options, and glibc's own resolver."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from node.bootstrap.vm import users
from tests.support import sshd
from tests.support.checkout import until
from tests.support.named_machines import CONTROLLER, HOSTS, UNKNOWN, NamedMachines, need_named_machines
from tests.support.net_machines import CLOUD

FIRST, SECOND = "10.98.1.1", "10.98.1.2"
MANY = {f"v100-{number}": f"10.98.{4 + number // 250}.{1 + number % 250}" for number in range(1000)}


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[NamedMachines]:
    need_named_machines()
    named_machines = NamedMachines(monkeypatch)
    try:
        named_machines.serve()
        named_machines.serve_cloud(www="10.98.200.9")
        yield named_machines
    finally:
        named_machines.close()


def test_every_machine_finds_every_other_that_is_up(machines: NamedMachines) -> None:
    machines.come_up(compute_0=FIRST, compute_1=SECOND)
    known = {**HOSTS, "compute-0": FIRST, "compute-1": SECOND}
    for host, own in known.items():
        assert machines.resolve(host, *known) == known, host
        full = [f"{name}.{machines.domain}" for name in known]
        assert list(machines.resolve(host, *full).values()) == list(known.values())
        # Names outside of the cluster are the cloud's. A node that is off is unknown at once, without a wait.
        assert machines.resolve(host, "www.example.org", "www", "compute-2", "none.example.org") == {
            "www.example.org": "10.98.200.9", "www": "10.98.200.9",
            "compute-2": UNKNOWN, "none.example.org": UNKNOWN,
        }  # fmt: skip
        for name, address in known.items():
            # The full name comes first, whether it is from a name server or from /etc/hosts.
            said = machines.net.shell(host, f"getent hosts {name}").split()
            assert said[:2] == [address, f"{name}.{machines.domain}"]
        assert machines.net.shell(host, "hostname --fqdn") == f"{host}.{machines.domain}"
        assert machines.net.shell(host, "hostname --ip-address") == own


def test_a_node_that_comes_back_elsewhere_is_found_there_at_once(machines: NamedMachines) -> None:
    machines.come_up(compute_0=FIRST)
    assert machines.resolve("login-0", "compute-0", "compute-1") == {"compute-0": FIRST, "compute-1": UNKNOWN}
    machines.look({"compute-1": SECOND})
    assert machines.resolve("login-0", "compute-0", "compute-1") == {
        "compute-0": UNKNOWN, "compute-1": SECOND,
    }  # fmt: skip
    machines.look({"compute-0": "10.98.1.3", "compute-1": SECOND})
    assert machines.resolve("login-0", "compute-0") == {"compute-0": "10.98.1.3"}
    log = machines.log.read_text()
    assert "started" in log
    assert "using nameserver" not in log, "it forwards nothing"


def test_a_thousand_names_and_each_change_at_once(machines: NamedMachines) -> None:
    machines.look(MANY)
    assert machines.resolve("login-0", *MANY) == MANY
    moved = {**MANY, "v100-999": "10.98.99.9"}
    machines.look(moved)
    assert machines.resolve("login-0", "v100-999", "v100-998") == {
        "v100-999": "10.98.99.9", "v100-998": MANY["v100-998"],
    }  # fmt: skip
    machines.look({"v100-5": MANY["v100-5"]})
    found = machines.resolve("login-0", *MANY)
    assert {name for name, address in found.items() if address != UNKNOWN} == {"v100-5"}


def test_a_name_server_that_starts_again_knows_all(machines: NamedMachines) -> None:
    """This is a reboot of the controller. The file is on its disk."""
    machines.come_up(compute_0=FIRST)
    machines.server.send_signal(signal.SIGKILL)
    machines.server.wait()
    # Without the name server the head's machines and the cloud's names are still found.
    assert machines.resolve("compute-0", "controller", "compute-0", "www.example.org") == {
        "controller": CONTROLLER, "compute-0": FIRST, "www.example.org": "10.98.200.9",
    }  # fmt: skip
    machines.serve()
    assert machines.resolve("login-0", "compute-0") == {"compute-0": FIRST}


def test_it_serves_the_cluster_alone(machines: NamedMachines) -> None:
    """The name server listens on one address, without root's rights. The cloud's resolver knows no node."""
    machines.come_up(compute_0=FIRST)
    listening = machines.net.shell("controller", "ss -Hlntu 'sport = :53' | awk '{print $5}' | sort -u")
    assert listening == f"{CONTROLLER}:53"
    status = Path(f"/proc/{machines.server.pid}/status").read_text()
    assert "Uid:\t0\t" not in status
    assert machines.served(f"compute-0.{machines.domain}", CLOUD) is None


def test_systemd_resolved_finds_them_at_once_too(machines: NamedMachines) -> None:
    """As on the clouds' images, it caches no answer of the controller, and still finds the cloud's names."""
    machines.resolved("login-1", "10.98.0.7")
    machines.come_up(compute_0=FIRST)
    assert machines.net.shell("login-1", "grep -v '^#' /etc/resolv.conf").splitlines() == [
        "nameserver 127.0.0.53", "options edns0 trust-ad", f"search {machines.domain} example.org",
    ]  # fmt: skip
    known = {**HOSTS, "compute-0": FIRST, "login-1": "10.98.0.7"}
    clouds = {"www.example.org": "10.98.200.9", "www": "10.98.200.9", "none.example.org": UNKNOWN}
    assert machines.resolve("login-1", *known, *clouds, "compute-1") == {
        **known, **clouds, "compute-1": UNKNOWN,
    }  # fmt: skip
    machines.look({"compute-0": "10.98.1.3", "compute-1": SECOND})
    moved = {"compute-0": "10.98.1.3", "compute-1": SECOND}
    assert machines.resolve("login-1", *moved) == moved
    machines.look({"compute-1": SECOND})
    assert machines.resolve("login-1", *moved) == {**moved, "compute-0": UNKNOWN}
    machines.server.kill()
    machines.server.wait()
    assert machines.resolve("login-1", *HOSTS, *clouds) == {**HOSTS, **clouds}


@pytest.fixture
def ssh(machines: NamedMachines, tmp_path: Path) -> str:
    """An ssh command for nodes, with the product's configuration of ssh and a key that all nodes accept."""
    if problem := sshd.missing():
        pytest.skip(problem)
    machines.come_up(compute_0=FIRST, compute_1=SECOND)
    key, server = (sshd.make_key(tmp_path / name) for name in ("key", "server"))
    sshd.PRIVILEGE_SEPARATION.mkdir(exist_ok=True)
    options = {
        "HostKey": server, "AuthorizedKeysFile": f"{key}.pub", "PidFile": "none", "UsePAM": "no",
        "StrictModes": "no", "PermitRootLogin": "prohibit-password",
    }  # fmt: skip
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    for node in ("compute-0", "compute-1"):
        machines.net.daemon(node, [str(sshd.SSHD), "-D", "-e", "-f", "/dev/null", *words], tmp_path / "sshd")
        until(partial(machines.net.shell, node, "ss -Hlnt 'sport = :22'"), 60, f"sshd on {node}")
    login = machines.machine("login-0")
    users.configure_ssh(login)
    return f"ssh -F {login.at(users.CLIENT)} -i {key} -o BatchMode=yes"


def test_ssh_goes_to_a_node_by_its_name(machines: NamedMachines, ssh: str) -> None:
    """ssh asks no question about the node's host key, which differs with each launch."""
    assert machines.net.shell("login-0", f"{ssh} compute-1 hostname") == "compute-1"
    assert machines.net.shell("compute-1", f"{ssh} compute-0 hostname") == "compute-0"


def test_mpirun_starts_ranks_on_hosts_by_their_names(machines: NamedMachines, ssh: str) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed (package openmpi-bin)")
    options = f"--allow-run-as-root --mca plm rsh --mca plm_rsh_agent '{ssh}' --host compute-0,compute-1"
    for host in ("compute-0", "login-0"):
        said = machines.net.shell(host, f"mpirun {options} hostname")
        assert sorted(said.splitlines()) == ["compute-0", "compute-1"]
