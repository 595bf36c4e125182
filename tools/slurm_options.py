"""Make tests/node/data/slurm-options.json, the options of Slurm's programs that take a value, by release:

    PYTHONPATH=. .venv/bin/python tools/slurm_options.py

The names are those of the manual pages in Debian's package slurm-client, of each suite with a release that
this project supports. For scontrol they are the keys of its update, create and show commands. All options
with a value are listed, because Slurm's own pages do not say which values it checks before it stores them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import re
import subprocess
import tarfile
import urllib.request
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
SUITES = ("bookworm", "trixie", "forky")
PROGRAMS = ("sbatch", "srun", "salloc", "scontrol")
FILE = Path(__file__).parents[1] / "tests" / "node" / "data" / "slurm-options.json"
_TAGGED = re.compile(r"^\.TP.*\n(.+)$", re.MULTILINE)
_OPTION = re.compile(r"--([a-z][a-z-]*)\[?=")
_KEY = re.compile(r"([A-Z][A-Za-z]+)(?:\+|-|\+-|\[[+-]+\])?=")


def named(page: str, program: str) -> list[str]:
    """Return the options with a value in a page's source: the words with which its paragraphs begin."""
    plain = (re.sub(r"\\f[BIRP]|\\&", "", line).replace("\\-", "-") for line in _TAGGED.findall(page))
    pattern = _KEY if program == "scontrol" else _OPTION
    return sorted({name for line in plain for name in pattern.findall(line.partition(" (")[0])})


def package(suite: str) -> dict[str, str]:
    """Return what the suite's index says of slurm-client."""
    index = lzma.decompress(_fetch(f"dists/{suite}/main/binary-amd64/Packages.xz")).decode()
    (entry,) = (part for part in index.split("\n\n") if part.startswith("Package: slurm-client\n"))
    return dict(line.split(": ", 1) for line in entry.split("\n") if re.match(r"[\w-]+: ", line))


def pages(content: bytes) -> dict[str, str]:
    """Return the sources of the manual pages in a package, by program."""
    unpacked = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", "/dev/stdin"], input=content, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as archive:
        files = {name: archive.extractfile(f"./usr/share/man/man1/{name}.1.gz") for name in PROGRAMS}
        return {name: gzip.decompress(file.read()).decode() for name, file in files.items() if file}


def _fetch(path: str) -> bytes:
    with urllib.request.urlopen(f"{MIRROR}/{path}", timeout=60) as answer:
        content: bytes = answer.read()
    return content


def main() -> None:
    versions = {}
    for suite in SUITES:
        entry = package(suite)
        content = _fetch(entry["Filename"])
        if hashlib.sha256(content).hexdigest() != entry["SHA256"]:
            raise SystemExit(f"{entry['Filename']} is not the file of the index of {suite}")
        options = {name: named(page, name) for name, page in pages(content).items()}
        versions[entry["Version"]] = {"suite": suite, "sha256": entry["SHA256"], "options": options}
    FILE.write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main()
