"""Our own tables of nftables: who may send what from this machine, now and at each later boot."""

from __future__ import annotations

from node.bootstrap.context import Context
from node.system import files

PACKAGE = "nftables"
RULES = "etc/slurm-stacks/{name}.nft"
UNIT = "slurm-stacks-{name}.service"
UNIT_TEXT = """\
# Written by slurm-stacks: {what}.
[Unit]
Description=slurm-stacks: {what}
DefaultDependencies=no
After=local-fs.target
Before=network-pre.target
Wants=network-pre.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/nft -f /{rules}

[Install]
WantedBy=sysinit.target
"""


def table(name: str, chains: str) -> str:
    """Return a rule set that replaces an earlier one of the same table."""
    return (
        f"# Written by slurm-stacks.\ntable inet {name}\ndelete table inet {name}\n"
        f"table inet {name} {{\n{chains}}}\n"
    )


def install(context: Context, name: str, what: str, rules: str) -> None:
    """Load rules now, and before the network starts at every later boot.

    Args:
        name: The name of the file with the rules and of its unit.
        what: What the rules say, as a clause.

    Raises:
        CommandError: nftables refuses the rules.
    """
    file, unit = RULES.format(name=name), UNIT.format(name=name)
    path, unit_path = context.at(file), context.at(f"etc/systemd/system/{unit}")
    for written in (path, unit_path):
        written.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, rules.encode())
    files.write(unit_path, UNIT_TEXT.format(what=what, rules=file).encode())
    context.run("nft", "-f", str(path), timeout=30.0)
    context.run("systemctl", "enable", unit, timeout=60.0)


def remove(context: Context, name: str, table_name: str) -> bool:
    """Remove rules that `install` has placed, and return whether there were any.

    Raises:
        CommandError: nftables does not remove them.
    """
    file, unit = context.at(RULES.format(name=name)), UNIT.format(name=name)
    if not file.exists():
        return False
    context.run("systemctl", "disable", unit, timeout=60.0)
    context.at(f"etc/systemd/system/{unit}").unlink(missing_ok=True)
    # With an empty table of that name nft needs no list of what is there.
    files.write(file, f"table inet {table_name}\ndelete table inet {table_name}\n".encode())
    context.run("nft", "-f", str(file), timeout=30.0)
    # The file is the last to go: as long as it is there, an interrupted removal is repeated.
    file.unlink()
    return True
