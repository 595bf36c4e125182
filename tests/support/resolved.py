"""systemd-resolved, as Ubuntu's images have it, on a machine of `named_machines`.

Installing the distribution's package would make it resolve this host's names. So only the program is taken
out of it, kept in the cache, and run with its own /run and users.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.checkout import until
from tests.support.net_machines import CLOUD, NetMachines
from tests.support.unpacked import file_of

PACKAGE, USER = "systemd-resolved", "systemd-resolve"
INSTALLED = Path("/usr/lib/systemd/systemd-resolved")
STUB = "../run/systemd/resolve/stub-resolv.conf"
# systemd-networkd's file about a link that is up, with DHCP's settings.
LINK = f"ADMIN_STATE=configured\nOPER_STATE=routable\nDNS={CLOUD}\nDOMAINS=example.org\n"


def program() -> Path:
    """Return the program's path. The test is skipped if this distribution has no such program."""
    if INSTALLED.exists():
        return INSTALLED
    return file_of(PACKAGE, f"lib/systemd/{PACKAGE}")


def prepare(root: Path) -> None:
    """Write the files of a machine that is about to start: its resolv.conf, and the program's user."""
    etc = root / "etc"
    (etc / "resolv.conf").unlink(missing_ok=True)
    (etc / "resolv.conf").symlink_to(STUB)
    for name, line in (("passwd", f"{USER}:x:991:991::/:/usr/sbin/nologin"), ("group", f"{USER}:x:991:")):
        (etc / name).write_text(f"{Path('/etc', name).read_text()}{line}\n")


def start(net: NetMachines, host: str, log: Path) -> None:
    """Run the program on a machine. It answers when this returns."""
    binary = program()
    state = "/run/systemd/netif/links"
    net.shell(host, f"mount -t tmpfs -o mode=755 tmpfs /run; mkdir -p {state}")
    number = net.shell(host, "ip -o link show eth0 | cut -d: -f1")
    net.shell(host, f"printf '{LINK}' >{state}/{number}")
    net.daemon(host, [str(binary)], log)
    try:
        until(lambda: net.run(host, "test", "-e", f"/etc/{STUB}").returncode == 0, 60, "systemd-resolved")
        until(lambda: net.shell(host, "ss -Hlnu 'src 127.0.0.53'"), 60, "its stub")
    except AssertionError as error:
        error.add_note(log.read_text())
        raise
