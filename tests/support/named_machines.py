"""A cluster's machines as far as names go: the step `hosts` on each, and the controller's real name server.

It uses the standard library and the node's code only, because the workload's tests use it too.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from node.bootstrap.context import Context
from node.bootstrap.vm import name_server, resolver
from node.design import names
from node.design.folders import Folders
from node.design.model import Settings
from node.elastic import dns_hosts
from node.elastic.dns_hosts import DnsHosts
from node.slurm.states import NodeState
from tests.support import net_machines, recorded, resolved, whole_boot
from tests.support.checkout import ROOT, until
from tests.support.doubles import FakeControl
from tests.support.net_machines import CLOUD, NetMachines

CONTROLLER, LOGIN = "10.98.0.5", "10.98.0.6"
HOSTS = {"controller": CONTROLLER, "login-0": LOGIN}
ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from node.design import names
print(json.dumps(names.ask(sys.argv[2], sys.argv[3], 5.0)))
"""
RESOLVE = """
import json, socket, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = socket.gethostbyname(name)
    except socket.gaierror as error:
        found[name] = error.errno
print(json.dumps(found))
"""
UNKNOWN = -2
"""EAI_NONAME: a name is not known. A resolver that has not answered gives EAI_AGAIN."""
PYTHON = "/usr/bin/python3"


def need_named_machines() -> None:
    net_machines.need_net_machines()
    if not Path(name_server.PROGRAM).exists():
        pytest.skip(f"{name_server.PACKAGE} is not installed")


class NamedMachines:
    """A controller, a login machine, and nodes that are up according to Slurm.

    Attributes:
        slurm: What Slurm says. `look` makes the daemon read it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # The name server becomes another user, and each pytest that starts closes its folders to all others.
        self._folder = Path(tempfile.mkdtemp(prefix="slurm-stacks-names-"))
        self._folder.chmod(0o755)
        self.net = NetMachines(self._folder)
        self._patch = monkeypatch
        # A busy machine may be slow; what is not served after this time never will be.
        monkeypatch.setattr(dns_hosts, "SERVED_SECONDS", 60.0)
        self.slurm = FakeControl()
        for host, address in HOSTS.items():
            self._boot(host, address)
        self._context = self.machine("controller")
        self.log = self._folder / "names.log"
        shared = Path(str(names.folder(self._context.folders)))
        shared.mkdir(parents=True)
        (shared / name_server.STATIC).write_text(names.lines(HOSTS, self.domain))
        read, named = self.slurm.nodes_since, self.slurm.named_nodes
        self._names = DnsHosts(read, named, shared, self.domain, self.served, 3600.0)

    @property
    def domain(self) -> str:
        return names.domain(self._context.settings.design)

    def serve(self) -> None:
        """Start the name server with the product's own options, and the cloud's resolver."""
        (Path(str(self._context.folders.run))).mkdir(parents=True, exist_ok=True)
        own = [name_server.PROGRAM, *name_server.name_server_options(self._context)]
        self.server = self.net.daemon("controller", own, self.log)
        until(lambda: self.served(f"controller.{self.domain}") == CONTROLLER, 60, "the name server")

    def serve_cloud(self, **known: str) -> None:
        """Start a cloud's resolver, which knows these names below example.org and denies all others."""
        records = [f"--host-record={name}.example.org,{address}" for name, address in known.items()]
        options = [
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-hosts",
            "--no-resolv",
            "--local=/#/",
        ]
        place = [f"--listen-address={CLOUD}", "--bind-interfaces", f"--pid-file={self._folder}/cloud.pid"]
        log = self._folder / "cloud.log"
        self.net.daemon("", [name_server.PROGRAM, *options, *place, *records], log)
        name, address = next(iter(known.items()))
        until(lambda: self.served(f"{name}.example.org", CLOUD) == address, 60, "the cloud's resolver")

    def served(self, name: str, server: str = CONTROLLER) -> str | None:
        """Return a server's answer to a query of its own machine."""
        said: str | None = json.loads(self._python("controller", ASK, str(ROOT), name, server))
        return said

    def resolved(self, host: str, address: str) -> None:
        """Give a machine systemd-resolved in place of its own resolv.conf."""
        # This comes first, because the step `hosts` looks for it.
        resolved.prepare(self.machine(host).at(""))
        self._boot(host, address, resolv_conf=False)
        resolved.start(self.net, host, self._folder / f"{host}-resolved.log")

    def come_up(self, **nodes: str) -> None:
        """Let nodes (`_` for `-`) boot at these addresses and register."""
        for name, address in nodes.items():
            self._boot(name.replace("_", "-"), address)
        self.look({**self.up(), **{name.replace("_", "-"): at for name, at in nodes.items()}})

    def up(self) -> dict[str, str]:
        return {name: state.address for name, state in self.slurm.state.items()}

    def look(self, up: Mapping[str, str]) -> None:
        """Let Slurm say that these nodes are up, while a job waits for them."""
        self.slurm.state = {
            name: NodeState(name, "IDLE", frozenset({"CLOUD"}), address=at) for name, at in up.items()
        }
        self._names.nodes()

    def resolve(self, host: str, *wanted: str) -> dict[str, str | int]:
        """Return name -> address, or the resolver's error, by Python on a machine."""
        found: dict[str, str | int] = json.loads(self._python(host, RESOLVE, *wanted))
        return found

    def close(self) -> None:
        self.net.close()
        shutil.rmtree(self._folder)

    def _python(self, host: str, program: str, *words: str) -> str:
        done = self.net.run(host, PYTHON, "-c", program, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def machine(self, host: str) -> Context:
        """Return the machine's part of a boot, with the root that its network will have."""
        role = {"controller": "controller", "login-0": "login"}.get(host, "compute")
        context, _ = recorded.machine(self._folder / host, role, host)
        site = dataclasses.replace(context.settings.site, controller_address=CONTROLLER, addresses=HOSTS)
        context.settings = Settings(context.settings.design, site)
        context.folders = Folders(context.settings)
        return context

    def _boot(self, host: str, address: str, *, resolv_conf: bool = True) -> None:
        context = self.machine(host)
        root = self._folder / host / "root"
        self.net.roots[host] = root
        # As in the images of both clouds, except for systemd's resolver.
        (root / "etc" / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {host}\n")
        if resolv_conf:
            (root / "etc" / "resolv.conf").write_text(f"nameserver {CLOUD}\nsearch example.org\n")
        with self._patch.context() as patch:
            whole_boot.name_is_noted(patch, host)
            patch.setattr(resolver, "address_towards", lambda _other: address)
            resolver.configure(context)
        self.net.start(host, address)
