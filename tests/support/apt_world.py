"""An apt repository of empty packages with noble's names, and a machine whose apt, dpkg and root are its own.

The packages are those of `tests/node/data/noble.yaml`; apt resolves and dpkg installs for real.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from node.bootstrap import command
from tests.support.recorded import Recorder

NOBLE = Path(__file__).parents[1] / "node/data/noble.yaml"
FIELDS = ("depends", "recommends", "provides", "conflicts", "breaks")
REAL = ("apt-get", "apt-cache", "dpkg-query", "dpkg-deb", "env", "tar")
CONFIG = """\
Dir "{root}";
Dir::State::status "{root}/var/lib/dpkg/status";
Dir::Bin::dpkg "{root}/dpkg";
Dir::Etc::SourceList "{root}/noble.list";
Dir::Etc::SourceParts "{root}/none";
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Sandbox::User "";
Acquire::Languages "none";
"""


@functools.cache
def _groups() -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = yaml.safe_load(NOBLE.read_text())["groups"]
    return groups


class Repository:
    """Packages as .deb files, each built once a session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._paragraphs: dict[tuple[str, str], str] = {}

    def has(self, group: str, **words: str) -> list[str]:
        """Return the paragraphs of a group's packages for an index, and build the packages that are new."""
        return [self._package(entry, words) for entry in _groups()[group]]

    def _package(self, entry: dict[str, Any], words: dict[str, str]) -> str:
        name, version = entry["name"].format(**words), entry["version"].format(**words)
        fields = {key.title(): " ".join(entry[key].format(**words).split()) for key in FIELDS if key in entry}
        files = [file.format(**words) for file in entry.get("files", [])]
        key = (name, f"{version} {fields}")
        if key not in self._paragraphs:
            self._paragraphs[key] = self._build(name, version, fields, files)
        return self._paragraphs[key]

    def _build(self, name: str, version: str, fields: dict[str, str], files: Iterable[str]) -> str:
        number = len(self._paragraphs)
        tree, deb = self.folder / f"tree-{number}", self.folder / f"{name}-{number}.deb"
        head = {"Package": name, "Version": version, "Architecture": "amd64"}
        rest = {"Maintainer": "Nobody <nobody@example.org>", "Description": "Empty"}
        control = "".join(f"{key}: {value}\n" for key, value in {**head, **fields, **rest}.items())
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(control)
        for file in files:
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            (tree / file).write_text("")
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, deb],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        content = deb.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        return f"{control}Filename: {deb.name}\nSize: {len(content)}\nSHA256: {digest}\n"


class Machine(Recorder):
    """A runner of commands. apt and dpkg are real and act upon `root`; other commands are only recorded.

    Its only source is the repository, even if the machine adds others: nothing uses the network.
    """

    def __init__(self, root: Path, repository: Repository) -> None:
        super().__init__()
        self._root, self._repository = root, repository
        for name in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers",
                     "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt",
                     "etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/sources.list.d"):  # fmt: skip
            (root / name).mkdir(parents=True, exist_ok=True)
        (root / "var/lib/dpkg/status").touch()
        self._config = root / "apt.conf"
        self._config.write_text(CONFIG.format(root=root))
        dpkg = root / "dpkg"
        dpkg.write_text(
            f"#!/bin/sh\nexec dpkg --root={root} --log={root}/log "
            '--force-not-root --force-bad-path --force-unsafe-io "$@"\n'
        )
        dpkg.chmod(0o755)
        self._index = root / "archive"
        self._index.mkdir()
        (self._index / "pool").symlink_to(repository.folder)
        source = f"deb [trusted=yes] file:{self._index} ./\n"
        (root / "noble.list").write_text(source)

    def archive(self, *groups: tuple[str, dict[str, str]]) -> None:
        """Set what the archive has from now on. apt knows it after the next update."""
        found = [text for group, words in groups for text in self._repository.has(group, **words)]
        text = "\n".join(dict.fromkeys(found)).replace("Filename: ", "Filename: pool/")
        (self._index / "Packages").write_text(text)

    def have(self, *names: str) -> None:
        """Install packages that belong to the machine's image."""
        self("apt-get", "update")
        self("apt-get", "--yes", "install", "--no-install-recommends", *names)

    def versions(self) -> dict[str, str]:
        """Return package -> version of all installed packages."""
        said = self("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package} ${Version}\n")
        return {row.split()[1]: row.split()[2] for row in said.splitlines() if row.startswith("installed ")}

    def __call__(self, *argv: str, **options: Any) -> str:
        said = super().__call__(*argv, **options)
        if argv[0] not in REAL:
            return said
        more = [f"--admindir={self._root}/var/lib/dpkg"] if argv[0] == "dpkg-query" else []
        environment = {**(options.pop("env", None) or {}), "APT_CONFIG": str(self._config)}
        options |= {"attempts": 1, "timeout": 120.0}
        return command.run(argv[0], *more, *argv[1:], env=environment, **options)
