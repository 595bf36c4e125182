"""Checks of this machine's loopback, names, ports and clock. They contact no other machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from cli.doctor.finding import Finding, Severity, fine, from_message, stops, warns
from cli.local import loopback
from cli.local import name_support as names_of_nodes
from cli.local.diagnosis.host import Host
from cli.local.run_directory import FIRST_PORT, LAST_PORT, RunDirectory
from infra.errors import UserError
from localcloud import addresses
from node import ports
from node.model import ClusterDesign
from node.slurm.addressing import ports_needed

DAY = 86400.0


def answers(*, boots: bool) -> Iterable[Finding]:
    """Check a connection over 127.0.0.1, which the whole cluster uses, and how Slurm looks addresses up.

    Args:
        boots: whether machines are containers, which have a network and a Slurm of their own.
    """
    if (problem := loopback.silent() if boots else loopback.problem()) is not None:
        yield stops("network.loopback", *problem)
        return
    yield fine("network.loopback", "127.0.0.1 answers")


def names(host: Host, name: str | None = None) -> Iterable[Finding]:
    """Check that /etc/hosts has `localhost` and this host's name: another lookup may take seconds.

    Args:
        name: this host's name.
    """
    name = name or socket.gethostname()
    table: dict[str, list[str]] = {}
    for line in (host.text("/etc/hosts") or "").splitlines():
        address, *aliases = line.partition("#")[0].split() or [""]
        for alias in aliases:
            table.setdefault(alias.lower(), []).append(address)
    if "127.0.0.1" not in table.get("localhost", []):
        yield warns(
            "network.localhost",
            "/etc/hosts does not say that localhost is 127.0.0.1",
            "As root: echo '127.0.0.1 localhost' >>/etc/hosts",
        )
    sources = next(
        (s for s in (host.text("/etc/nsswitch.conf") or "").splitlines() if s.startswith("hosts:")), ""
    )
    if name.lower() not in table and "myhostname" not in sources:
        yield warns(
            "network.hostname",
            f"/etc/hosts does not have this host's name, {name}: Slurm's programs look it up elsewhere, and "
            "may wait for the answer",
            f"As root: echo '127.0.1.1 {name}' >>/etc/hosts",
        )


def node_names(
    run: RunDirectory, problem: Callable[[str], str | None] = names_of_nodes.unsupported_reason
) -> Iterable[Finding]:
    """Check whether nodes will know each other by name.

    Args:
        problem: returns the reason why they will not, for a block of addresses.
    """
    first = addresses.planned_block(run.path)
    if (sentence := problem(first)) is None:
        found = f"nodes know each other by name, with addresses from {addresses.first_node_address(first)} on"
        yield fine("network.node_names", found)
        return
    yield from_message("network.node_names", Severity.WARNS, sentence)


def slurm_folder(problem: Callable[[], str | None] = names_of_nodes.no_slurm_folder) -> Iterable[Finding]:
    """Check whether programs that remove SLURM_CONF from their environment will find the cluster."""
    if (sentence := problem()) is not None:
        yield from_message("slurm.folder", Severity.WARNS, sentence)


def free_ports(host: Host, run: RunDirectory, design: ClusterDesign) -> Iterable[Finding]:
    """Check that there are enough free ports in a row; a cluster that is up has its ports already."""
    count = 1 + ports_needed(design)
    kept = run.kept_ports()
    if kept is not None and kept[1] >= count and not ports.free(kept[0]):
        yield fine("ports.free", f"this cluster has those from {kept[0]} to {kept[0] + kept[1] - 1}")
    else:
        try:
            base = run.free_ports(count)
        except UserError as error:
            yield from_message("ports.free", Severity.STOPS, str(error))
            return
        yield fine("ports.free", f"{count} in a row are free, from {base} on")
    span = (host.text("/proc/sys/net/ipv4/ip_local_port_range") or "").split()
    if len(span) == 2 and int(span[0]) <= LAST_PORT and int(span[1]) >= FIRST_PORT:
        yield warns(
            "ports.outgoing",
            f"the kernel takes ports from {span[0]} to {span[1]} for outgoing connections, the cluster's "
            f"({FIRST_PORT} to {LAST_PORT}) among them: one may be taken just when a node starts",
            'As root: sysctl -w net.ipv4.ip_local_port_range="32768 60999"',
        )


def clock(project: Path, now: float | None = None) -> Iterable[Finding]:
    """Check the clock: if it is wrong, munge refuses credentials and downloads fail.

    Args:
        now: the time in seconds since the epoch; `None` means the machine's clock.
    """
    now = time.time() if now is None else now
    newest = max((project / name).stat().st_mtime for name in ("cluster", "uv.lock", "Pulumi.yaml"))
    if now < newest - DAY:
        yield warns(
            "clock.time",
            f"it says {time.strftime('%F %R', time.gmtime(now))} UTC, and the project's files are of "
            f"{time.strftime('%F', time.gmtime(newest))}",
            "Set the clock (as root: timedatectl set-ntp true).",
        )
    else:
        yield fine("clock.time", time.strftime("%F %R UTC", time.gmtime(now)))
