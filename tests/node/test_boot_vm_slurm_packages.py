"""Slurm from packages, a repository, and a source that is built, with the real apt, dpkg, gpgv and tar."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm import (
    apt_repositories,
    hashed_files,
    openpgp,
    packages,
    slurm_packages,
    slurm_source,
)
from node.bootstrap.vm.signed_files import Signer
from node.design.containers import Package
from node.design.model import Repository as AptRepository
from node.design.model import SlurmSettings
from node.system import http_client
from node.system.cloud_api import ServiceError
from node.system.http_client import Answer
from tests.support.apt_world import Machine, Repository
from tests.support.recorded import machine

OLD, NEW = "23.11.4-1", "24.11.5-4+deb13u1"
OTHERS = ("munge", "chrony", "libpmix-dev", "rsync", "nfs-common", "nftables", "dpkg-dev")
DAEMONS = ("slurmctld", "slurmd", "slurm-client")
PLUGINS = "slurm-wlm-basic-plugins"
UNUSED = ("slurm-wlm-doc", "libslurm-dev", "libpmi0-dev")

# A source package without debhelper: each package holds nothing.
CONTROL = """\
Source: slurm-wlm
Maintainer: Nobody <nobody@example.org>
Build-Depends: dpkg-dev (>= 99)
{packages}"""
RULES = """\
#!/usr/bin/make -f
clean build build-arch build-indep binary-indep:
\tfalse emulator: nobody waits for a second Slurm
\tgrep -qx 'u slurm 64030' debian/slurmd.sysusers
binary binary-arch:
\tfor name in $$(sed -n 's/^Package: //p' debian/control); do \\
\t  mkdir -p debian/$$name/DEBIAN && dpkg-gencontrol -p$$name -Pdebian/$$name && \\
\t  dpkg-deb --root-owner-group -Znone --build debian/$$name .. || exit 1; done
"""
CHANGELOG = "slurm-wlm ({version}) trixie-security; urgency=high\n\n  * A fix.\n\n -- Nobody <nobody@example.org>  Mon, 07 Sep 2026 10:00:00 +0000\n"  # noqa: E501


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("debs"))


def package(debs: Repository, name: str, version: str, plugins: str = PLUGINS) -> str:
    """Return an empty package's paragraph of an index. A daemon needs the plugins of its version."""
    depends = {"depends": f"{plugins} (= {version})"} if plugins != name and "slurm" in name else {}
    return debs._package({"name": name, "version": version, **depends}, {})


def file_of(debs: Repository, paragraph: str) -> Path:
    return debs.folder / paragraph.rpartition("Filename: ")[2].partition("\n")[0]


@pytest.fixture
def run(tmp_path: Path, debs: Repository) -> Machine:
    """A machine whose distribution has the old release."""
    found = Machine(tmp_path / "root", debs)
    root = tmp_path / "root"
    config = found._config.read_text().replace(f"{root}/none", f"{root}/etc/apt/sources.list.d")
    found._config.write_text(config)
    texts = [package(debs, name, OLD) for name in (*DAEMONS, PLUGINS, *OTHERS, *slurm_source.TOOLS)]
    (found._index / "Packages").write_text("\n".join(texts).replace("Filename: ", "Filename: pool/"))
    return found


def context_of(tmp_path: Path, run: Machine, slurm: SlurmSettings, role: str = "compute") -> Context:
    host = {"compute": "compute-0", "controller": "controller"}[role]
    context, _ = machine(tmp_path, role, host, slurm=slurm)
    context.run = run
    return context


def given(monkeypatch: pytest.MonkeyPatch, files: list[Path]) -> tuple[Package, ...]:
    """Return packages whose addresses are those of files here."""
    known = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in files}

    def pinned(_context: Context, _source: str, sha256: str, target: Path) -> None:
        target.write_bytes(known[sha256].read_bytes())

    monkeypatch.setattr(hashed_files, "download", pinned)
    return tuple(Package(f"s3://bucket/{path.name}", digest) for digest, path in known.items())


def slurm_of(run: Machine) -> dict[str, str]:
    return {name: version for name, version in run.versions().items() if "slurm" in name}


def test_packages_of_the_stack_file_are_the_only_slurm(
    tmp_path: Path, run: Machine, debs: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [file_of(debs, package(debs, name, NEW)) for name in (*DAEMONS, PLUGINS)]
    context = context_of(tmp_path, run, SlurmSettings(packages=given(monkeypatch, files)))
    assert packages.install(context).startswith("installed slurmd, slurm-client, munge")
    # slurmctld is not for a node. What the daemons need of each other comes from the packages, too.
    assert slurm_of(run) == {"slurmd": NEW, "slurm-client": NEW, PLUGINS: NEW}
    calls = len(run.calls)
    assert packages.install(context) == "all are there"
    assert not any(call.startswith("apt-get") for call in run.calls[calls:]), "an image has all"


def test_an_older_release_of_the_stack_file_wins_over_the_distribution(
    tmp_path: Path, run: Machine, debs: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.have(PLUGINS)
    older = "22.05.8-4"
    files = [file_of(debs, package(debs, name, older)) for name in (*DAEMONS, PLUGINS)]
    context = context_of(tmp_path, run, SlurmSettings(packages=given(monkeypatch, files)))
    packages.install(context)
    assert slurm_of(run) == {"slurmd": older, "slurm-client": older, PLUGINS: older}


def test_a_package_that_is_missing_is_not_the_distributions(
    tmp_path: Path, run: Machine, debs: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [file_of(debs, package(debs, name, NEW)) for name in ("slurmd", PLUGINS)]
    context = context_of(tmp_path, run, SlurmSettings(packages=given(monkeypatch, files)))
    with pytest.raises(CommandError, match="slurm-client"):
        packages.install(context)
    assert slurm_of(run) == {}


def test_packages_of_schedmds_own_source_have_other_names(
    tmp_path: Path, run: Machine, debs: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("slurm-smd-slurmctld", "slurm-smd-client", "slurm-smd-slurmdbd", "slurm-smd")
    files = [file_of(debs, package(debs, name, "26.05.5-1", "slurm-smd")) for name in names]
    settings = SlurmSettings(packages=given(monkeypatch, files), accounting=True)
    context = context_of(tmp_path, run, settings, "controller")
    assert sorted(slurm_packages.install(context)) == sorted(names[:3])
    assert slurm_of(run) == dict.fromkeys(names, "26.05.5-1")
    assert slurm_packages.install(context) == []


def test_a_repository_comes_with_the_key_of_its_fingerprint(
    tmp_path: Path, run: Machine, debs: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "pool").symlink_to(debs.folder)
    texts = [package(debs, each, NEW) for each in (*DAEMONS, PLUGINS)]
    (site / "Packages").write_text("\n".join(texts).replace("Filename: ", "Filename: pool/"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    added = []

    def add(_context: Context, name: str, key: str, source: str, *, fingerprint: str) -> None:
        added.append((key, source, fingerprint))
        where = tmp_path / "root/etc/apt/sources.list.d" / f"{name}.list"
        where.write_text(f"deb [trusted=yes] http://127.0.0.1:{server.server_port}/ ./\n")

    monkeypatch.setattr(apt_repositories, "add_repository", add)
    key = "https://127.0.0.1/key.asc"
    mirror = AptRepository("https://127.0.0.1/slurm", "noble", ("main",), key, "A" * 40)
    try:
        slurm_packages.install(context_of(tmp_path, run, SlurmSettings(repository=mirror)))
    finally:
        server.shutdown()
        server.server_close()
    assert added == [(key, "https://127.0.0.1/slurm noble main", "A" * 40)]
    assert slurm_of(run) == {"slurmd": NEW, "slurm-client": NEW, PLUGINS: NEW}


def key(folder: Path) -> list[str]:
    """Make a key pair for an archive. Returns the command that signs with it."""
    folder.mkdir(mode=0o700)
    gpg = ["gpg", "--batch", "--quiet", "--homedir", str(folder), "--pinentry-mode", "loopback"]
    subprocess.run(
        [
            *gpg,
            "--passphrase",
            "",
            "--quick-generate-key",
            "Archive <archive@example.org>",
            "ed25519",
            "sign",
        ],
        check=True,
    )
    with (folder / "public.gpg").open("wb") as public:
        subprocess.run([*gpg, "--export"], stdout=public, check=True)
    subprocess.run(["gpgconf", "--homedir", str(folder), "--kill", "all"], check=True)
    return gpg


def archive_of(folder: Path, files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz" if "debian/rules" in files else "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o755
            tar.addfile(member, io.BytesIO(text.encode()))
    return content.getvalue()


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An archive with the newer source package, and the folder of the key that has signed it."""
    folder, keys = tmp_path_factory.mktemp("archive"), tmp_path_factory.mktemp("signer") / "keys"
    paragraphs = [
        f"\nPackage: {name}\nArchitecture: all\nDescription: Nothing\n"
        + (f"Depends: {PLUGINS} (= ${{binary:Version}})\n" if name in DAEMONS else "")
        for name in (*DAEMONS, PLUGINS, *UNUSED, "slurm-wlm-emulator")
    ]
    upstream = NEW.partition("-")[0]
    debian = {
        "debian/control": CONTROL.format(packages="".join(paragraphs)),
        "debian/rules": RULES,
        "debian/changelog": CHANGELOG.format(version=NEW),
        "debian/source/format": "3.0 (quilt)\n",
        "debian/slurmd.sysusers": "u! slurm 64030\n",
    }
    files = {
        f"slurm-wlm_{upstream}.orig.tar.gz": archive_of(folder, {f"slurm-{upstream}/README": "Slurm\n"}),
        f"slurm-wlm_{NEW}.debian.tar.xz": archive_of(folder, debian),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    # The index names a .dsc, which nobody fetches: the archive has none.
    listed = {**files, f"slurm-wlm_{NEW}.dsc": b"none"}
    sums = {
        name: "".join(f" {hashlib.new(name, c).hexdigest()} {len(c)} {file}\n" for file, c in listed.items())
        for name in ("md5", "sha256")
    }
    (folder / "Sources").write_text(
        f"Package: slurm-wlm\nVersion: {NEW}\nFormat: 3.0 (quilt)\nDirectory: .\n"
        f"Files:\n{sums['md5']}Checksums-Sha256:\n{sums['sha256']}"
    )
    sign(folder, key(keys))
    return folder, keys


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signed: tuple[Path, Path]) -> Path:
    """The archive, signed by the one key that the machine knows."""
    folder, keys = tmp_path / "archive", tmp_path / "keys"
    shutil.copytree(signed[0], folder)
    keys.mkdir()
    shutil.copy(signed[1] / "public.gpg", keys)
    monkeypatch.setattr(slurm_source, "KEYRING", str(keys / "public.gpg"))
    monkeypatch.setattr(slurm_source, "ARCHIVES", {"debian-13": (f"file:{folder} ./",)})
    return folder


def sign(folder: Path, gpg: list[str]) -> None:
    content = (folder / "Sources").read_bytes()
    release = folder / "Release"
    digest = hashlib.sha256(content).hexdigest()
    release.write_text(f"Date: Mon, 07 Sep 2026 10:00:00 UTC\nSHA256:\n {digest} {len(content)} Sources\n")
    clear = ["--yes", "--output", str(folder / "InRelease"), "--clear-sign", str(release)]
    subprocess.run([*gpg, *clear], check=True)
    subprocess.run(["gpgconf", "--homedir", gpg[4], "--kill", "all"], check=True)


SOURCE = SlurmSettings(source="debian-13")


class Keys:
    """The server of Debian's keys, and the fingerprint of the only one that is Debian's."""

    URL = "https://keys/13.asc"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, known: Path) -> None:
        self.asked: list[str] = []
        self.served = known.read_bytes()
        (fingerprint,) = openpgp.fingerprints(self.served)
        signers = {"debian-13": (Signer(self.URL, fingerprint),)}
        monkeypatch.setattr(slurm_source, "SIGNERS", signers)
        monkeypatch.setattr(http_client, "call", self._get)

    def _get(self, _method: str, url: str, *_rest: object, **_options: object) -> Answer:
        self.asked.append(url)
        return Answer(200, self.served)


@pytest.mark.usefixtures("sources")
def test_a_source_is_built_once_and_leaves_nothing_else(
    tmp_path: Path, run: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(monkeypatch, tmp_path / "keys/public.gpg")
    node = context_of(tmp_path, run, SOURCE)
    packages.install(node)
    assert slurm_of(run) == {"slurmd": NEW, "slurm-client": NEW, PLUGINS: NEW}
    assert keys.asked == [], "the machine's keys suffice while one of them signs"
    assert not run.versions().keys() & set(slurm_source.TOOLS), "what the build needed is gone"
    folder = node.at(slurm_packages.FOLDER)
    assert (folder / "debian-13").read_text() == f"{NEW}\n"
    assert [path.name.partition("_")[0] for path in folder.glob("lib*.deb")] == ["libslurm-dev"]
    assert not list(folder.glob("*doc*")), "nobody installs it"
    assert not node.at(slurm_source.WORK).exists()

    # A container machine's image holds several roles.
    built = sum("dpkg-buildpackage" in call for call in run.calls)
    slurm_packages.install(context_of(tmp_path, run, SOURCE, "controller"))
    assert slurm_of(run)["slurmctld"] == NEW
    assert sum("dpkg-buildpackage" in call for call in run.calls) == built == 1


def test_a_key_that_the_machine_lacks_is_taken_by_its_fingerprint(
    tmp_path: Path, run: Machine, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ubuntu 24.04 has the keys of Debian up to 12."""
    sign(sources, key(tmp_path / "newer"))
    keys = Keys(monkeypatch, tmp_path / "newer/public.gpg")
    packages.install(context_of(tmp_path, run, SOURCE))
    assert slurm_of(run)["slurmd"] == NEW
    assert keys.asked == [Keys.URL]


def test_a_source_that_another_key_has_signed_is_not_built(
    tmp_path: Path, run: Machine, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign(sources, key(tmp_path / "other"))
    keys = Keys(monkeypatch, tmp_path / "keys/public.gpg")
    with pytest.raises(CommandError, match=r"(?i)not signed|NO_PUBKEY"):
        packages.install(context_of(tmp_path, run, SOURCE))
    keys.served = (tmp_path / "other/public.gpg").read_bytes()
    with pytest.raises(ServiceError, match=r"https://keys/13\.asc: the key is \w+, and should be"):
        packages.install(context_of(tmp_path, run, SOURCE))
    assert not any("dpkg-buildpackage" in call for call in run.calls)


def test_an_archive_that_does_not_answer_is_no_question_of_keys(
    tmp_path: Path, run: Machine, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(monkeypatch, tmp_path / "keys/public.gpg")
    (sources / "InRelease").unlink()
    (sources / "Release").unlink()
    with pytest.raises(CommandError, match="Release"):
        packages.install(context_of(tmp_path, run, SOURCE))
    assert keys.asked == []


def test_the_fingerprints_are_those_of_debians_package() -> None:
    """debian-archive-keyring has had Debian 13's keys since 2023.3+deb12u2."""
    keyring = Path(slurm_source.KEYRING)
    # The name of a key's owner is plain text in the file.
    if not keyring.exists() or b"(13/trixie)" not in keyring.read_bytes():
        pytest.skip("needs a machine whose package has Debian 13's keys")
    for source, signers in slurm_source.SIGNERS.items():
        assert {signer.fingerprint for signer in signers} <= {*openpgp.fingerprints(keyring.read_bytes())}
        assert source in slurm_source.ARCHIVES


def test_a_file_of_a_source_with_another_sum_is_not_built(
    tmp_path: Path, run: Machine, sources: Path
) -> None:
    (patched,) = sources.glob("*.debian.tar.xz")
    content = bytearray(patched.read_bytes())
    content[-1] ^= 1
    patched.write_bytes(content)
    with pytest.raises(CommandError, match=r"(?i)hash sum|mismatch"):
        packages.install(context_of(tmp_path, run, SOURCE))
    assert not any("dpkg-buildpackage" in call for call in run.calls)
