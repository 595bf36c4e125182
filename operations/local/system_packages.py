"""Installs missing packages of the distribution, such as Slurm and munge, without starting their daemons."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError
from node.slurm import version
from operations import pages, programs
from operations.waiting import attempts

SLURM, ACCOUNTING, CONTAINERS, TESTS, PMIX = "slurm", "accounting", "containers", "tests", "pmix"
NEEDED = {
    SLURM: {
        "slurmctld": "/usr/sbin/slurmctld",
        "slurmd": "/usr/sbin/slurmd",
        "slurm-client": "/usr/bin/scontrol",
        "munge": "/usr/sbin/munged",
    },
    # MariaDB's core packages have no service and make no database.
    ACCOUNTING: {
        "slurmdbd": "/usr/sbin/slurmdbd",
        "slurm-wlm-mysql-plugin": "/usr/lib/*/slurm*/accounting_storage_mysql.so",
        "mariadb-server-core": "/usr/sbin/mariadbd",
        "mariadb-client-core": "/usr/bin/my_print_defaults",
    },
    # Slurm is in the machines' image.
    CONTAINERS: {
        "systemd-container": "/usr/bin/systemd-nspawn",
        "debootstrap": "/usr/sbin/debootstrap",
        "iproute2": "/*bin/ip",
    },
    # A real sshd, a controller's firewall and name server, MPI's ranks on several machines, non-GNU programs
    # for `./cluster`, and a directory of users.
    TESTS: {
        "openssh-server": "/usr/sbin/sshd",
        "nftables": "/usr/sbin/nft",
        "dnsmasq-base": "/usr/sbin/dnsmasq",
        "busybox": "/usr/bin/busybox",
        "openmpi-bin": "/usr/bin/mpirun.openmpi",
        "slapd": "/usr/sbin/slapd",
        "ldap-utils": "/usr/bin/ldapwhoami",
    },
    PMIX: {"libpmix-dev": "/usr/lib/*/libpmix.so"},
}
"""Purpose -> package -> the file that shows that it is installed. A `*` stands for what differs between
architectures and releases."""
WHO_NEEDS = {
    SLURM: "the local stack needs",
    ACCOUNTING: "slurm-stacks:cluster.slurm.accounting: true needs",
    CONTAINERS: "machines that boot need",
    TESTS: "the tests need",
    PMIX: "it needs",
}
NO_PMIX = "`srun --mpi=pmix` does not work here, and all else does"
BUILT_WITHOUT_PMIX = f"{NO_PMIX}: this release's package of Slurm is built without PMIx"
PMIX_PLUGIN = "/usr/lib/*/slurm*/mpi_pmix.so"
PMIX_BY_VERSION = "/usr/lib/*/libpmix.so.2"
PMIX_NAME_CHANGED = (23, 2)
"""Later releases of Slurm load the library by the name in the package libpmix2, which the plugin's package
brings. Earlier ones use a name that only developers' packages have."""
SERVICES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "munge": "munge",
    "openssh-server": "ssh",
    "slapd": "slapd",
}
POLICY = "/usr/sbin/policy-rc.d"
OUR_POLICY = (
    "#!/bin/sh\n# slurm-stacks: while it installs packages, whose services shall stay off\nexit 101\n"
)
LOCK_SECONDS = 300.0
LOCK_PAUSE = 2.0
HEARTBEAT_SECONDS = 15.0

Say = Callable[[str], None]


def missing(purpose: str = SLURM) -> list[str]:
    """Return the packages for a purpose that this machine lacks."""
    return [package for package, file in NEEDED[purpose].items() if not _there(file)]


def _there(file: str) -> bool:
    """Whether a file exists, or one that matches a pattern."""
    if "*" in file:
        return next(Path("/").glob(file.lstrip("/")), None) is not None
    return Path(file).exists()


def _files() -> dict[str, str]:
    """Return every package that may be installed, with the file that shows it."""
    return {package: file for packages in NEEDED.values() for package, file in packages.items()}


def unsuitable() -> str | None:
    """Return why the installed Slurm cannot run a cluster; `None` if it can."""
    for daemon in ("slurmctld", "slurmd"):
        file = Path(NEEDED[SLURM][daemon])
        if "emulator" in file.resolve().name:
            return (
                f"{file} is Slurm's emulator ({file.resolve()}), which runs no jobs. Have it removed "
                "(as root: apt-get remove slurm-wlm-emulator) and run the command again."
            )
    file = Path(NEEDED[SLURM]["slurmctld"])
    done = programs.capture([str(file), "-V"], seconds=30)
    if done.status in (programs.CANNOT_RUN, programs.TIMED_OUT):
        return f"{file} cannot be run: {done.err.strip()}. Have its package installed again."
    try:
        version.traits(version.parse(done.out))
    except ValueError as error:
        words = done.err.strip() or str(error)
        return f"{file} cannot be used: {words}. Install Slurm 22.05 or newer: {pages.SLURM}."
    return None


def has_no_pmix() -> bool:
    """Return whether this machine's Slurm was built without PMIx, as Debian's is from 26.05.5 on."""
    return not missing(SLURM) and not _there(PMIX_PLUGIN)


def missing_for_pmix() -> list[str]:
    """Return the packages that this machine lacks for `srun --mpi=pmix`, where its Slurm could do that."""
    if not (wanted := missing(PMIX)) or not _there(PMIX_PLUGIN):
        return []
    try:
        printed = programs.capture([NEEDED[SLURM]["slurmctld"], "-V"], seconds=30).out
        by_version = version.parse(printed) > PMIX_NAME_CHANGED and _there(PMIX_BY_VERSION)
    except ValueError:  # `unsuitable` says what is wrong with it
        return []
    return [] if by_version else wanted


def add_pmix(say: Say) -> None:
    """Install what `srun --mpi=pmix` needs. A cluster works without it, so a failure is only said."""
    if not (wanted := missing_for_pmix()):
        return
    try:
        _install(wanted, WHO_NEEDS[PMIX], say)
    except UserError as error:
        # apt-get's own lines are left out: without a network they would come at every `up`.
        say(f"{NO_PMIX}: {str(error).splitlines()[0].rstrip(':')}")


def check_accounting() -> str:
    """Return a sentence with what `up` will install for Slurm's accounting; empty if nothing is missing.

    Raises:
        UserError: Exit 3; this user may not install packages.
    """
    if not (wanted := missing(ACCOUNTING)):
        return ""
    _root_for(wanted, WHO_NEEDS[ACCOUNTING])
    return f"{WHO_NEEDS[ACCOUNTING]} {', '.join(wanted)}: `up` installs them by apt-get"


def ensure(say: Say, *, accounting: bool = False) -> None:
    """Install the missing packages for Slurm.

    Args:
        accounting: Whether to install the packages for Slurm's accounting, too.

    Raises:
        UserError: This user may not install packages, the installation failed, or the installed Slurm cannot
            run a cluster.
    """
    more = missing(ACCOUNTING) if accounting else []
    if wanted := [*missing(), *more]:
        _install(wanted, WHO_NEEDS[ACCOUNTING if wanted == more else SLURM], say)
    elif _is_ours(Path(POLICY)):
        # An installation that was killed has left the policy, which prevents every service from starting.
        with contextlib.suppress(UserError):
            programs.capture([*_root(""), "rm", "-f", POLICY])
    if problem := unsuitable():
        raise UserError(problem, EXIT_REFUSED, code="packages.unsuitable")


def ensure_for(purpose: str, say: Say) -> None:
    """Install the missing packages for container machines or for the tests.

    Args:
        purpose: CONTAINERS | TESTS.

    Raises:
        UserError: This user may not install packages, or the installation failed.
    """
    if wanted := missing(purpose):
        _install(wanted, WHO_NEEDS[purpose], say)


def command(wanted: list[str]) -> str:
    """Return the command that installs these packages, for the user to type."""
    return " ".join(["apt-get", "install", *_OPTIONS, *wanted])


# No installed package is removed: MariaDB's packages would remove MySQL's.
_OPTIONS = ("--no-install-recommends", "--no-remove")


def _root_for(wanted: list[str], need: str) -> list[str]:
    """Return the prefix of an apt-get command that installs these packages.

    Raises:
        UserError: Exit 3; there is no apt-get, or this user cannot become root.
    """
    if shutil.which("apt-get") is None:
        raise UserError(
            f"{need} {', '.join(wanted)}, and there is no apt-get here: install your distribution's packages "
            f"of {', '.join(_files()[package] for package in wanted)}, without starting their services "
            f"({pages.SLURM}), and run the command again",
            EXIT_REFUSED,
            code="packages.no-apt",
        )
    return _root(
        f"{need} {', '.join(wanted)}, which only root can install. "
        f"Have an administrator run: {command(wanted)}"
    )


def _install(wanted: list[str], need: str, say: Say) -> None:
    root = _root_for(wanted, need)
    say(f"installing {', '.join(wanted)} (the distribution's packages; their services stay off)")
    with _no_daemons(root):
        # If the update fails, the present lists may be enough: an unrelated repository may have failed.
        updated, update_words = _apt(root, ["update", "-qq"], say)
        status, words = _apt(root, ["install", "-y", "-qq", *_OPTIONS, *wanted], say)
        if status:
            before = "" if updated == 0 else f"\napt-get update had failed before it:\n{_tail(update_words)}"
            raise UserError(
                f"{command(wanted)} failed:\n{_tail(words)}{before}", code="packages.not-installed"
            )
        # The packages enable their services for the next boot, but this cluster runs its own daemons.
        if shutil.which("systemctl"):
            services = [SERVICES[package] for package in wanted if package in SERVICES]
            programs.capture([*root, "systemctl", "disable", "--quiet", *services])
    if still := [_files()[package] for package in wanted if not _there(_files()[package])]:
        raise UserError(
            f"{command(wanted)} succeeded, but {', '.join(still)} is not there", code="packages.not-there"
        )


def _root(refusal: str) -> list[str]:
    """Return the prefix of a command that needs root.

    Raises:
        UserError: Exit 3 with `refusal`; this user cannot become root.
    """
    if os.getuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    if programs.capture([*sudo, "true"]).failed:
        raise UserError(refusal, EXIT_REFUSED, code="packages.refused")
    return sudo


def _apt(root: list[str], arguments: list[str], say: Say) -> tuple[int, str]:
    """Run apt-get, and wait while another package manager holds the lock. Returns status and output."""
    announced = False
    for _ in attempts(LOCK_SECONDS, LOCK_PAUSE):
        status, output = _run([*root, *_CLEAN, "apt-get", *arguments], say)
        refusal = next((line for line in output.splitlines() if "Could not get lock" in line), None)
        if status == 0 or refusal is None:
            break
        if not announced:
            say(f"another package manager is at work; waiting up to {LOCK_SECONDS:g} s for it ({refusal})")
            announced = True
    return status, output


# With env, because sudo removes variables. In English, because the output is searched for a message.
_CLEAN = ["env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"]


def _run(command: list[str], say: Say) -> tuple[int, str]:
    """Run a command, and return its status and output.

    Ctrl-C asks the command to end and waits for it: a half-installed package blocks all others.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    started = time.monotonic()
    interrupted: KeyboardInterrupt | None = None
    while True:
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = child.communicate(timeout=HEARTBEAT_SECONDS)
                break
            say(f"apt-get {command[command.index('apt-get') + 1]}: {time.monotonic() - started:.0f} s so far")
        except KeyboardInterrupt as error:
            interrupted = error
            say("apt-get is asked to stop; it brings what it has begun to an end")
            with contextlib.suppress(ProcessLookupError, PermissionError):
                child.send_signal(signal.SIGINT)
    if interrupted is not None:
        raise interrupted
    return child.returncode, output


def _tail(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-10:])


@contextlib.contextmanager
def _no_daemons(root: list[str]) -> Iterator[None]:
    """Prevent packages from starting their services, with Debian's policy file for that."""
    if Path(POLICY).exists() and not _is_ours(Path(POLICY)):
        yield
        return
    written = programs.capture([*root, "tee", POLICY], text=OUR_POLICY)
    try:
        if written.failed:
            raise UserError(
                f"{POLICY} cannot be written ({written.err.strip()}), and without it the services of the "
                f"packages would start. Install them by hand: apt-get install {' '.join(NEEDED[SLURM])}",
                EXIT_REFUSED,
                code="packages.policy",
            )
        programs.capture([*root, "chmod", "755", POLICY])
        yield
    finally:
        programs.capture([*root, "rm", "-f", POLICY])


def _is_ours(policy: Path) -> bool:
    try:
        return policy.read_text() == OUR_POLICY
    except (OSError, UnicodeDecodeError):
        return False
