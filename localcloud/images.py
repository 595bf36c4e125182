"""The images of container machines: a distribution's base image and the layers on it, made once and cached.

`debootstrap` makes the base image from the packages of a suite: this host's own, another suite of the same
distribution, or one that apt on this host has a source of. Like a cloud's image it has systemd, cloud-init
and sshd, and nothing of Slurm. The machine's boot installs the rest (`node.bootstrap.vm.packages`), unless an
image made from this one has it already.

Each layer is a folder of the cache, named after its content; the name of a layer on top of another begins
with the other's name. Every change of this project makes new layers, so layers that were not used for a while
are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import TimeoutExpired

from node.system import subprocesses
from node.system.locks import locked
from node.system.subprocesses import SEARCH

PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "libpam-systemd", "cloud-init", "openssh-server", "sudo"),
    *("ca-certificates", "e2fsprogs", "iproute2", "iputils-ping", "kmod", "netcat-openbsd", "nftables"),
    *("netbase", "procps", "python3"),
)
"""Packages that a cloud's image of the distribution has and that machines here use."""
ARCHIVE_HINT = (
    "See that the distribution's archive can be reached (apt-get update), then run the command again."
)
HEARTBEAT_SECONDS = 15.0
LAST_LINES = 12

MASKED = (
    # This stage of cloud-init has nothing to do.
    "cloud-config.service",
    # The address is static, so it is there as soon as systemd-networkd runs.
    "systemd-networkd-wait-online.service",
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer"),
    *("fstrim.timer", "e2scrub_reap.service", "systemd-resolved.service", "systemd-timesyncd.service"),
    # Nobody logs in at a console.
    *("console-getty.service", "getty@.service", "getty.target"),
)
"""Units that every boot would wait for and no machine needs."""
HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
"""/etc/hosts of the image. A machine adds the names of the others."""
NO_SERVICES = "#!/bin/sh\nexit 101\n"
LEAN = (
    "path-exclude=/usr/share/doc/*\npath-exclude=/usr/share/man/*\npath-exclude=/usr/share/locale/*\n"
    # Unsafe writes are fine: after a power loss the draft is made again.
    "force-unsafe-io\n"
)

NEEDED_MIB = 3000
"""Free space that is needed to make an image: the image, and the packages that are downloaded for it."""
KEPT_SECONDS = 7 * 86400.0
"""For how long an unused layer is kept."""
DRAFT = ".draft"
PROCESSES = Path("/proc")

# Runs a command in its own namespaces: its mounts and processes end with it, also when we are killed.
_OWN_NAMESPACES = (
    *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"),
    *("--pid", "--fork", "--kill-child", "--mount-proc"),
)
_INSTALL = """
set -e
mount -t proc proc "$1/proc"
mount -t sysfs -o ro sysfs "$1/sys"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"
root=$1
shift
chroot "$root" apt-get --quiet update
exec chroot "$root" apt-get --quiet --yes --no-install-recommends install "$@"
"""


Say = Callable[[str], None]


class ImageError(Exception):
    """An image cannot be made here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source of packages, as apt on this host knows it.

    Attributes:
        key: The file with the signing key; empty if the host names none.
    """

    uri: str
    suite: str
    components: tuple[str, ...]
    key: str = ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what an image holds, except the packages' versions.

    Attributes:
        suite: Bookworm, trixie, noble, ….
        sources: The first one is the source of the suite itself.
        settings: This host's settings of apt, such as proxies and signature checks.
    """

    suite: str
    sources: tuple[Source, ...]
    settings: str = ""
    packages: tuple[str, ...] = PACKAGES

    @property
    def name(self) -> str:
        """Name of the image; equal recipes have equal names."""
        parts = [asdict(self), MASKED, LEAN, _INSTALL]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return f"{self.suite}-{digest[:12]}"


def recipe(suite: str | None = None) -> Recipe:
    """Return the recipe of an image.

    Args:
        suite: Another suite than the host's. It comes from the sources that apt on this host has for it, or
            else from the mirror of the host's own suite.

    Raises:
        ImageError: apt on this host has no source for it.
    """
    own_suite = _own_suite()
    wanted = suite or own_suite
    lines = [line.split("|") for line in _index_targets().splitlines()]
    known = {_suite_of(release) for _, release, _, _ in lines}
    like = wanted if wanted in known else own_suite
    components: dict[tuple[str, str, str], list[str]] = {}
    for uri, release, component, key in lines:
        if _suite_of(release) == like:
            entry = (uri.rstrip("/"), release.replace(like, wanted, 1), key if key.startswith("/") else "")
            components.setdefault(entry, []).append(component)
    sources = [Source(u, r, tuple(dict.fromkeys(parts)), key) for (u, r, key), parts in components.items()]
    sources.sort(key=lambda source: source.suite != wanted)
    if not sources or sources[0].suite != wanted:
        raise ImageError(
            f"apt on this machine has no source of {own_suite}, from which the machines' image would be "
            "made: name the distribution's own archive in /etc/apt/sources.list.d"
        )
    settings = [
        line
        for line in _ask("apt-config", "dump", "Acquire").splitlines()
        if not line.startswith(("Acquire::IndexTargets", "Acquire::CompressionTypes")) and '""' not in line
    ]
    if (proxy := os.environ.get("http_proxy")) and not any("http::Proxy " in line for line in settings):
        settings.append(f'Acquire::http::Proxy "{proxy}";')
    return Recipe(wanted, tuple(sources), "\n".join(settings))


def _suite_of(release: str) -> str:
    """Return the suite of a release's part: `trixie` of `trixie-updates` and of `trixie/updates`."""
    return release.partition("-")[0].partition("/")[0]


_TARGET = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)"


def _index_targets() -> str:
    """Return apt's sources of packages, one line each, in the form of `_TARGET`.

    The sources alone say it. With an empty folder of package lists, apt does not read this host's lists,
    which takes half a second of CPU time wherever apt keeps no cache of them (in Docker's images). Without
    `--no-release-info` it would leave out sources that have no list.
    """
    try:
        with tempfile.TemporaryDirectory() as empty:
            asks = ("indextargets", "--no-release-info", "--format", _TARGET, "Created-By: Packages")
            return _ask("apt-get", "-o", f"Dir::State::lists={empty}", *asks)
    except OSError as error:
        raise ImageError(f"apt-get indextargets: {error}") from error


def ensure(wanted: Recipe, folder: Path, say: Say) -> Path:
    """Return the root folder of an image. If the image is missing, make it, which takes minutes.

    Args:
        folder: The folder of all images. The image's own folder in it appears only when it is complete.
        say: Called with progress messages.

    Raises:
        ImageError: The image cannot be made; no incomplete image stays.
    """
    return cached(folder, wanted.name, lambda draft: _make(wanted, draft, say), say) / "root"


def _make(wanted: Recipe, draft: Path, say: Say) -> None:
    root, first = draft / "root", wanted.sources[0]
    for program, package in (("debootstrap", "debootstrap"), ("unshare", "util-linux")):
        if shutil.which(program, path=SEARCH) is None:
            raise ImageError(f"{program} is not installed (package {package})")
    began = time.monotonic()
    say(f"making the image that machines start from ({wanted.suite}, about 500 MB; once, some minutes)")
    key = [f"--keyring={first.key}"] if first.key else []
    components = f"--components={','.join(first.components)}"
    command = ["debootstrap", "--variant=minbase", components, *key]
    # The script of any release of the distribution will do.
    _run([*_OWN_NAMESPACES, *command, wanted.suite, str(root), first.uri, *_script(wanted.suite)], draft, say)
    _configure_apt(wanted, root)
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text(NO_SERVICES)
    policy.chmod(0o755)
    borrowed = [name for name in ("etc/resolv.conf", "etc/hosts") if Path("/", name).exists()]
    for name in borrowed:
        (root / name).unlink(missing_ok=True)
        shutil.copyfile(Path("/", name), root / name)
    _run([*_OWN_NAMESPACES, "sh", "-c", _INSTALL, "sh", str(root), *wanted.packages], draft, say)
    policy.unlink()
    for name in borrowed:
        (root / name).unlink()
    _finish(root)
    (draft / "log").unlink(missing_ok=True)
    say(f"made the image in {time.monotonic() - began:.0f} s")


def _script(suite: str) -> list[str]:
    scripts = Path("/usr/share/debootstrap/scripts")
    own_suite = _own_suite()
    return (
        [] if (scripts / suite).exists() or not (scripts / own_suite).exists() else [str(scripts / own_suite)]
    )


def _configure_apt(wanted: Recipe, root: Path) -> None:
    lines = []
    for source in wanted.sources:
        signed = ""
        if source.key:
            place = root / source.key.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.key, place)
            signed = f"[signed-by={source.key}] "
        lines.append(f"deb {signed}{source.uri} {source.suite} {' '.join(source.components)}\n")
    (root / "etc/apt/sources.list").write_text("".join(lines))
    settings = f'{wanted.settings}\nAcquire::Languages "none";\n'
    (root / "etc/apt/apt.conf.d/90slurm-stacks").write_text(settings)
    (root / "etc/dpkg/dpkg.cfg.d/slurm-stacks").write_text(LEAN)


def _finish(root: Path) -> None:
    """Turn a fresh installation into an image, as a cloud's image maker does."""
    (root / "etc/hostname").unlink(missing_ok=True)
    (root / "etc/hosts").write_text(HOSTS)
    # The file is empty, not missing: each machine gets its own id.
    (root / "etc/machine-id").write_text("")
    (root / "var/lib/dbus/machine-id").unlink(missing_ok=True)
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    units = root / "etc/systemd/system"
    # A newer cloud-init is one process that waits for the unit of each stage.
    whole = (root / "lib/systemd/system/cloud-init-main.service").exists()
    for unit in MASKED:
        if unit == "cloud-config.service" and whole:
            continue
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    default = units / "default.target"
    default.unlink(missing_ok=True)
    default.symlink_to("/lib/systemd/system/multi-user.target")
    wanted = units / "multi-user.target.wants"
    wanted.mkdir(exist_ok=True)
    (wanted / "systemd-networkd.service").symlink_to("/lib/systemd/system/systemd-networkd.service")
    for place in ("var/cache/apt/archives", "var/lib/apt/lists", "var/log"):
        for path in (root / place).rglob("*"):
            if path.is_file() and path.name != "lock":
                path.unlink()


def _run(command: Sequence[str], draft: Path, say: Say) -> None:
    """Run a program that takes minutes, and report its progress.

    Raises:
        ImageError: The program failed; the message has its last lines.
    """
    log = draft / "log"
    with log.open("wb") as output:
        env = {
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            "PATH": SEARCH,
            "HOME": "/root",
            "LC_ALL": "C",
            "DEBIAN_FRONTEND": "noninteractive",
            "DPKG_FORCE": "unsafe-io",
        }
        child = subprocesses.start(command, env, output)
    began = time.monotonic()
    try:
        while child.poll() is None:
            with contextlib.suppress(TimeoutExpired):
                child.wait(HEARTBEAT_SECONDS)
                break
            line = (_end_of(log, 1) or [""])[0]
            say(f"  {time.monotonic() - began:.0f} s so far: {line[:100]}")
    except BaseException:
        subprocesses.kill(child)
        raise
    if status := child.returncode:
        lines = "\n".join(f"  {line}" for line in _end_of(log, LAST_LINES))
        program = next(word for word in command[len(_OWN_NAMESPACES) :] if word not in ("sh", "-c"))
        what = "debootstrap" if program == "debootstrap" else "apt-get in the image"
        raise ImageError(
            f"the machines' image cannot be made: {what} ended with status {status}:\n{lines}\n{ARCHIVE_HINT}"
        )


_PASSED_ON = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def _end_of(log: Path, count: int) -> list[str]:
    with contextlib.suppress(OSError):
        return [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-count:]
    return []


def _own_suite() -> str:
    """Return the name of this host's suite.

    Raises:
        ImageError: The host has none, or its distribution has no apt.
    """
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError):
        facts = platform.freedesktop_os_release()
    if not facts.get("VERSION_CODENAME") or shutil.which("apt-get") is None:
        raise ImageError(
            "machines that boot are made from Debian's or Ubuntu's packages, and this machine "
            f"({facts.get('PRETTY_NAME', 'of an unknown distribution')}) has no apt of a named release"
        )
    return facts["VERSION_CODENAME"]


def _ask(*command: str) -> str:
    try:
        ended = subprocesses.run(command, {"PATH": SEARCH})
    except OSError as error:
        raise ImageError(f"{' '.join(command[:2])}: {error}") from error
    if ended.status:
        raise ImageError(f"{' '.join(command[:2])}: status {ended.status}: {ended.last_line()}")
    return ended.output


def cached(folder: Path, name: str, make: Callable[[Path], None], say: Say) -> Path:
    """Return `folder/name`. If it is missing, `make` fills a draft of it; one process at a time does so.

    Raises:
        ImageError: Raised by `make`, or there is no space; the draft is removed.
    """
    target = folder / name
    with contextlib.suppress(OSError):
        # The time of the lock file is the time of the last use.
        _lock(target).touch()
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    waiting = "waiting for another command that makes the same image"
    with locked(_lock(target), busy=lambda: say(waiting)):
        draft = folder / f".{name}{DRAFT}"
        # A process that was killed may have left its draft.
        _remove(draft)
        if target.is_dir():
            return target
        check_free_space(folder)
        draft.mkdir()
        try:
            make(draft)
        except BaseException:
            _remove(draft)
            raise
        draft.rename(target)
    return target


def prune(folder: Path, keep: Collection[str], plans: Iterable[Path]) -> list[str]:
    """Remove layers that were not used for `KEPT_SECONDS`, and drafts of processes that were killed.

    Args:
        keep: Names of layers that stay, however old.
        plans: Files that name the layers of running clusters; a machine may start from them at any time.

    Returns:
        The names of the removed layers.
    """
    old = [path for path in _layers(folder) if path.name not in keep and _unused(path) > KEPT_SECONDS]
    if not old and not any(folder.glob(f".*{DRAFT}")):
        return []
    used = _mounted() + "".join(map(_text, plans))
    stay = {path.name for path in _layers(folder)} - {path.name for path in old}
    gone = []
    # The longest names come first: a layer that stays needs the layers below it.
    for path in sorted(old, key=lambda path: -len(path.name)):
        needed = any(other.startswith(f"{path.name}-") for other in stay)
        # Compare names, which are unique, because several paths may lead to the folder.
        if needed or f"/{path.name}/" in used:
            stay.add(path.name)
        elif _take(path):
            gone.append(path.name)
    for draft in folder.glob(f".*{DRAFT}"):
        _take(draft, folder / draft.name[1:].removesuffix(DRAFT))
    return gone


def size_mib(folder: Path) -> int:
    """Return how many MiB a folder takes on the disk."""
    # An image has tens of thousands of files. Python would look at them in four times as long.
    usage = (
        subprocesses.run(["du", "-sk", "--", str(folder)], {"PATH": os.defpath}) if folder.is_dir() else None
    )
    # du ends with a failure, but has the sum all the same, where a file went meanwhile or may not be read.
    return int(usage.output.split()[0]) // 1024 if usage and usage.output else 0


def _layers(folder: Path) -> list[Path]:
    return [path for path in folder.glob("[!.]*") if path.is_dir()] if folder.is_dir() else []


def _unused(path: Path) -> float:
    """Return the seconds since a layer was made or used."""
    times = [path.stat().st_mtime]
    with contextlib.suppress(OSError):
        times.append(_lock(path).stat().st_mtime)
    return time.time() - max(times)


def _mounted() -> str:
    """Return all mounts of all processes: a machine's layers are mounted only in its own namespace."""
    return "".join(map(_text, PROCESSES.glob("[0-9]*/mountinfo")))


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _take(path: Path, layer: Path | None = None) -> bool:
    """Remove a layer or its draft, unless a process is making it now."""
    try:
        with locked(_lock(layer or path), wait=False):
            # Rename the layer first: a half-removed layer must not look complete.
            draft = path.with_name(f".{path.name.strip('.').removesuffix(DRAFT)}{DRAFT}")
            path.rename(draft)
            _remove(draft)
    except BlockingIOError:
        return False
    return True


def _lock(layer: Path) -> Path:
    return layer.with_name(f".{layer.name}.lock")


def check_free_space(folder: Path) -> None:
    """Check that an image fits into a folder, which need not exist yet.

    Raises:
        ImageError: It does not.
    """
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free // 2**20
    if free < NEEDED_MIB:
        raise ImageError(
            f"the machines' image takes {NEEDED_MIB} MiB in {folder}, and {free} MiB are free there: "
            "make room, or have XDG_CACHE_HOME name a folder on a larger disk"
        )


def _remove(folder: Path) -> None:
    """Remove a folder whole, also while a process that was interrupted removes it, too."""
    while folder.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
