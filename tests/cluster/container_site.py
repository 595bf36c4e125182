"""A cluster of machines that boot with a user on each of them, for tests of jobs' containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from localcloud import nspawn
from localcloud.containers import leftovers
from node.system import rpc
from node.system.processes import ProcessId
from operations.local.run_directory import RunDirectory
from tests.support.checkout import Checkout, until

USER = "ana"
NUMBER = 2001
HOSTS = ("controller", "debug-0", "debug-1")
PROGRAMS = ("sh", "cat", "id", "env", "ls", "sleep", "python3")
"""Programs of an image in which jobs of tests run."""
_COPY = """
for program in {programs}; do
    path=$(command -v $program)
    for file in $path $(ldd $path | grep -o '/[^ ]*'); do
        mkdir -p {root}$(dirname $file)
        cp -L $file {root}$file
    done
done
[ -e {root}/bin ] || ln -s usr/bin {root}/bin
mkdir -p {root}/etc
"""
_IMAGE = """
set -e
umoci init --layout image
umoci new --image image:v1
umoci unpack --rootless --image image:v1 draft
{copy}
{more}
echo "root:x:0:0::/root:/bin/sh" >draft/rootfs/etc/passwd
echo "root:x:0:" >draft/rootfs/etc/group
echo "made by a test" >draft/rootfs/etc/image
umoci repack --image image:v1 draft
umoci config --image image:v1 --config.env WHERE=image --config.env COLOUR=of-the-image
"""


def copy_script(root: str, programs: Sequence[str]) -> str:
    """Return a shell script that copies programs of the machine, with their libraries, to another root."""
    return _COPY.format(root=root, programs=" ".join(programs))


def image_script(programs: Sequence[str], more: str = "") -> str:
    """Return a shell script that makes the image `image:v1`, as a registry's image would be unpacked.

    Args:
        programs: The programs of the machine that the image has.
        more: Commands that put more into the folder `draft/rootfs`.
    """
    return _IMAGE.format(copy=copy_script("draft/rootfs", programs), more=more)


class Site:
    """A cluster with a user.

    Args:
        stack: A stack file, from which a test may make another one.
    """

    def __init__(self, checkout: Checkout, stack: str) -> None:
        self.checkout, self.stack = checkout, stack
        self._agent = str(RunDirectory(checkout.run_directory).agent_socket)
        self.home = checkout.run_directory / "shared" / USER

    def on(self, host: str, command: str) -> str:
        """Run a command on a machine as root."""
        machines = rpc.call(self._agent, "inspect", 10.0)["machines"]
        (pid,) = [m["process"]["pid"] for m in machines if (m["node"], m["state"]) == (host, "running")]
        launcher = ProcessId.of(pid)
        assert launcher is not None
        done = nspawn.execute(launcher, "sh", "-c", command, seconds=120)
        assert done.status == 0, f"{command}: {done.output}{done.errors}"
        return done.output

    def user(self, command: str, *, status: int = 0) -> str:
        """Run a command where users log in as the user; what it prints, errors included."""
        whole = f"cd && {{ {command}\n}} 2>&1; echo status $?"
        told, _, ended = self.checkout.execute("su", "-", USER, "-c", whole).rpartition("status ")
        assert ended == f"{status}\n", told
        return told


@contextmanager
def container_site(
    folder: Path, stack: str, template: str = "", files: Mapping[str, Path] | None = None
) -> Iterator[Site]:
    """Bring up a stack with two static nodes and no login machine; nothing of it is left afterwards.

    Args:
        stack: The stack file. Its nodes are `debug-0` and `debug-1`.
        template: What `Site.stack` is, if it is another text.
        files: Path in the project -> a file to copy there.
    """
    checkout = Checkout(folder / "a checkout", stack)
    for name, source in (files or {}).items():
        target = checkout.folder / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(source.read_bytes())
    try:
        checkout.cluster("up", check=True)
        site = Site(checkout, template or stack)
        until(
            lambda: checkout.execute("sinfo", "-h", "-o", "%T").split() == ["idle"],
            240,
            "the static nodes",
        )
        account = f"groupadd -g {NUMBER} {USER} && useradd -M -u {NUMBER} -g {NUMBER} -s /bin/bash {USER}"
        for host in HOSTS:
            site.on(host, account)
        site.on("controller", f"install -d -o {USER} -g {USER} /home/{USER}")
        yield site
    finally:
        left = checkout.close()
    assert left == []
    assert leftovers(checkout.run_directory) == []
