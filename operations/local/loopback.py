"""Whether this host's loopback is enough for Slurm: all of a local cluster talks over it."""

from __future__ import annotations

import contextlib
import socket

from infra.errors import EXIT_REFUSED, UserError
from localcloud.machines import LOCALHOST

LOOPBACK = "127.0.0.1"
LOOPBACK_SECONDS = 1.0


def check_loopback() -> None:
    """Refuse a host on which no cluster of process machines could come up.

    Raises:
        UserError: Exit 3, with the cure.
    """
    if (problem := loopback_problem()) is not None:
        raise UserError(f"{problem[0]}. {problem[1]}", EXIT_REFUSED, code="host.loopback")


def loopback_problem() -> tuple[str, str] | None:
    """Return why Slurm cannot use the loopback, and the cure; `None` if it can."""
    return is_silent() or is_unresolved(ipv6=has_ipv6())


def is_silent() -> tuple[str, str] | None:
    """Return why no connection over 127.0.0.1 is possible, and the cure."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), LOOPBACK_SECONDS).close()
    except OSError as error:
        return (
            f"127.0.0.1 does not answer ({error.strerror or error}), and all of the cluster talks over it",
            "As root: ip link set lo up",
        )
    return None


def is_unresolved(*, ipv6: bool) -> tuple[str, str] | None:
    """Return why Slurm's programs find no address of this host, and the cure.

    They ask as Slurm's `get_addr_info` does. For IPv4 alone the C library answers nothing, not even to
    127.0.0.1, where the host has no IPv4 address but that one. Any other one will do, also on the loopback.

    Args:
        ipv6: Whether the cluster's slurm.conf allows IPv6 besides (`node.design.sites.LocalSite.ipv6`).
    """
    family = socket.AF_UNSPEC if ipv6 else socket.AF_INET
    flags = socket.AI_ADDRCONFIG | socket.AI_NUMERICSERV | socket.AI_PASSIVE | socket.AI_CANONNAME
    try:
        socket.getaddrinfo(LOOPBACK, 1, family, socket.SOCK_STREAM, flags=flags)
    except socket.gaierror as error:
        return (
            f"Slurm's programs find no address here, not even {LOOPBACK} ({error.strerror}): this host has "
            "no IPv4 address besides, because it has no network",
            "As root: ip address add 127.0.0.2/8 dev lo",
        )
    return None


def has_ipv6() -> bool:
    """Whether this kernel has IPv6, so that a daemon can listen for both kinds of addresses at once."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        probe.bind(("::", 0))
        return True
    return False


def _localhost_is_here() -> bool:
    """Whether localhost is 127.0.0.1, on which the controller's daemons then listen."""
    with contextlib.suppress(OSError):
        return socket.gethostbyname(LOCALHOST) == "127.0.0.1"
    return False
