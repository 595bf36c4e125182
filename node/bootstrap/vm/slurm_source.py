"""Builds the packages of Slurm from a distribution's source package, on a machine that becomes an image.

apt fetches the source. It takes the archive's index only with a signature of the distribution's own keys, and
the files only with the sums of that index. What the build needs is removed again, so that no image has it.
The keys are those of a package that the machine's archive signs, or else those with the known fingerprints.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm import apt, openpgp, signed_files
from node.bootstrap.vm.signed_files import Signer
from node.system import files, http_client

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
"""The keys of Debian's archives, from a package that Ubuntu has, too.

Ubuntu 24.04's is of 2023, and its newest keys are Debian 12's. They sign Debian 13, too, but perhaps not to
the end: since Debian 13 is out, 12's main archive is signed with the keys of 12 and 13, no more with 11's.
"""
ARCHIVES = {
    "debian-13": (
        "http://deb.debian.org/debian-security trixie-security main",
        "http://deb.debian.org/debian trixie main",
    ),
}
"""A source of the stack file -> the archives of that distribution. apt takes the newest version in them."""
SIGNERS = {
    "debian-13": (
        Signer(
            "https://ftp-master.debian.org/keys/archive-key-13.asc",
            "04B54C3CDCA79751B16BC6B5225629DF75B188BD",
        ),
        Signer(
            "https://ftp-master.debian.org/keys/archive-key-13-security.asc",
            "5E04A1E3223A19A20706E20F9904613D4CCE68C6",
        ),
    ),
}
"""A source -> the keys of its own release, which are fetched when no key of `KEYRING` signs any more.

The sources of the fingerprints are https://ftp-master.debian.org/keys.html and Debian's package
debian-archive-keyring, since 2023.3+deb12u2.
"""
UNKNOWN_KEY = "NO_PUBKEY"
"""gpgv's status of a signature whose key it does not have. apt says it only if no other signature is good."""
PACKAGE = "slurm-wlm"
TOOLS = ("build-essential", "debian-archive-keyring", "xz-utils")
WORK = "var/tmp/slurm-stacks-source"
FETCH_SECONDS = 300.0
BUILD_SECONDS = 3600.0
LEFT_OUT = re.compile(r"dbgsym|-doc_|(?<!libslurm)-dev_|sview|torque|rsmi|hdf5|influxdb|elasticsearch|kafka")
"""Packages that nothing here installs. libslurm-dev has the headers of plugins such as Pyxis, which whoever
builds one needs of this very release."""


def build(context: Context, source: str, folder: Path) -> str:
    """Build the packages of the newest version, unless the folder has them, and return its version.

    Args:
        source: A key of `ARCHIVES`.
        folder: The folder for the packages.

    Raises:
        CommandError: apt or the build failed. The error has its last lines.
        ServiceError: The distribution's keys cannot be fetched, or are others.
    """
    stamp = folder / source
    if stamp.exists():
        return stamp.read_text().strip()
    work = context.at(WORK)
    shutil.rmtree(work, ignore_errors=True)
    tree = files.folder(work / "tree")
    before = _installed(context)
    apt.update(context)
    apt.install(context, TOOLS, fresh=True)
    version = _fetch(context, source, work)
    _unpack(context, work, tree)
    context.run(
        *("apt-get", *apt.OPTIONS, "--no-install-recommends", "build-dep", str(tree)),
        timeout=apt.INSTALL_SECONDS,
        env=apt.ENVIRONMENT,
        attempts=3,
        pause=10.0,
    )
    # Ubuntu would optimize across files, which Debian does not, and which doubles the time.
    options = f"nocheck nodoc noautodbgsym optimize=-lto parallel={os.cpu_count() or 1}"
    # Without packages for debuggers what is for them would be made and thrown away.
    environment = {"LC_ALL": "C.UTF-8", "DEB_BUILD_OPTIONS": options, "DEB_CFLAGS_STRIP": "-g"}
    context.run(
        *("env", f"--chdir={tree}", "dpkg-buildpackage", "--build=binary", "--unsigned-changes"),
        # apt has just installed them.
        "--no-check-builddeps",
        timeout=BUILD_SECONDS,
        env={**apt.ENVIRONMENT, **environment},
    )
    apt.purge(context, sorted(_installed(context) - before))
    for path in work.glob("*.deb"):
        if not LEFT_OUT.search(path.name):
            shutil.move(path, folder / path.name)
            (folder / path.name).chmod(0o644)
    shutil.rmtree(work)
    files.write(stamp, f"{version}\n".encode())
    return version


def _installed(context: Context) -> set[str]:
    lines = context.run("dpkg-query", "--show", "--showformat=${db:Status-Status} ${binary:Package}\n")
    return {line.split()[1] for line in lines.splitlines() if line.startswith("installed ")}


def _fetch(context: Context, source: str, work: Path) -> str:
    """Fetch the source's two archives of files, and return the version."""
    files.folder(work / "lists" / "partial")
    keys = work / "keys.gpg"
    lines = [f"deb-src [signed-by={keys}] {archive}\n" for archive in ARCHIVES[source]]
    files.write(work / "all.list", "".join(lines).encode())
    for number, line in enumerate(lines):
        files.write(work / f"{number}.list", line.encode())
    everything = tuple(_apt(work, "all.list"))
    _update(context, source, keys, everything)
    uris = context.run("apt-get", *everything, "--print-uris", "--download-only", "source", PACKAGE)
    version = re.findall(rf"\b{PACKAGE}_(\S+)\.dsc\b", uris)[-1]
    # The index has the sums of both. The third file, .dsc, would only repeat them.
    for part in ("--tar-only", "--diff-only"):
        _fetch_part(context, part, version, [tuple(_apt(work, f"{n}.list")) for n in range(len(lines))], work)
    return str(version)


def _update(context: Context, source: str, keys: Path, options: tuple[str, ...]) -> None:
    """Update the lists of the archives, which one of the keys in a file must have signed."""
    command = ("apt-get", *apt.OPTIONS, *options, "--option=APT::Update::Error-Mode=any", "update")

    def update() -> None:
        context.run(*command, timeout=apt.UPDATE_SECONDS, env=apt.ENVIRONMENT, attempts=12, pause=10.0)

    files.write(keys, context.path(KEYRING).read_bytes())
    try:
        update()
    except CommandError as error:
        if UNKNOWN_KEY not in str(error):
            raise
        known = [signed_files.fetch_key(signer, attempts=http_client.ATTEMPTS) for signer in SIGNERS[source]]
        files.write(keys, b"".join(map(openpgp.binary, known)))
        update()


def _fetch_part(
    context: Context, part: str, version: str, archives: list[tuple[str, ...]], work: Path
) -> None:
    """Fetch one file of a version from the first archive that has it."""
    failed: CommandError | None = None
    for options in archives:
        fetch = ("source", "--download-only", part, f"{PACKAGE}={version}")
        command = ("env", f"--chdir={work}", "apt-get", *apt.OPTIONS, *options, *fetch)
        try:
            context.run(*command, timeout=FETCH_SECONDS, env=apt.ENVIRONMENT)
        except CommandError as error:
            failed = error
        else:
            return
    assert failed is not None
    raise failed


def _apt(work: Path, sources: str) -> Iterator[str]:
    """Yield options with which apt knows these sources alone, and leaves the machine's lists as they are."""
    yield f"--option=Dir::Etc::SourceList={work / sources}"
    yield "--option=Dir::Etc::SourceParts=-"
    yield f"--option=Dir::State::Lists={work / 'lists'}"


def _unpack(context: Context, work: Path, tree: Path) -> None:
    for pattern, options in (("*.orig.tar.*", ["--strip-components=1"]), ("*.debian.tar.*", [])):
        (path,) = work.glob(pattern)
        context.run("tar", "--extract", f"--file={path}", f"--directory={tree}", *options, timeout=120.0)
    _adapt(tree / "debian")


def _adapt(debian: Path) -> None:
    """Change what Debian's recipe does for other machines than ours."""
    control, rules = debian / "control", debian / "rules"
    paragraphs = control.read_text().split("\n\n")
    # The emulator is Slurm once more, and would take as long as all the rest.
    text = "\n\n".join(part for part in paragraphs if not re.match(r"\s*Package: \S+-emulator\n", part))
    # This dpkg builds 32-bit machines with 64-bit time, for which Debian has renamed libraries, too.
    text = re.sub(r"\bdpkg-dev \(>= [^)]*\)", "dpkg-dev", text)
    text = re.sub(r"\blibpmix2t64\b( \[[^]]*\])?", r"libpmix2t64\1 | libpmix2\1", text)
    files.write(control, text.encode(), 0o644)
    for users in debian.glob("*.sysusers"):
        # systemd 257 and later also locks the account.
        files.write(users, re.sub(r"^u! ", "u ", users.read_text(), flags=re.MULTILINE).encode(), 0o644)
    lines = rules.read_text().splitlines(keepends=True)
    files.write(rules, "".join(line for line in lines if "emulator" not in line).encode(), 0o755)
