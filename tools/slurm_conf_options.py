"""Make infra/slurm_releases/options.json, the options of slurm.conf that each release of Slurm knows:

    PYTHONPATH=. .venv/bin/python tools/slurm_conf_options.py [REPOSITORY]

The source is Slurm's own table of options, in `src/common/read_config.c` of the newest tag of each release
that this project supports. REPOSITORY is a clone of SchedMD's; without it one is made for the run. The file
has a row for each option, with a value only for the releases in which something changes.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from node.slurm.version import RELEASES, TRAITS, spell

REPOSITORY = "https://github.com/SchedMD/slurm.git"
SOURCE = "src/common/read_config.c"
TABLES = {"slurm.conf": "slurm_conf_options", "PartitionName": "_partition_options"}
"""Section of the file -> the name of the parser's table."""
FILE = Path(__file__).parents[1] / "infra" / "slurm_releases" / "options.json"
_ROW = re.compile(r'\{\s*"(\w+)"\s*,\s*S_P_(\w+)\s*(?:,\s*(\w+))?')
_TAG = re.compile(r"slurm-(\d\d)-(\d\d)-(\d+)-(\d+)")


def options(source: str, table: str) -> dict[str, str]:
    """Return option -> type of a table in the parser's source, in small letters; `defunct` if it is ignored.

    Raises:
        ValueError: The source has no such table.
    """
    match = re.search(rf"\b{table}\[\] = \{{(.*?)^\s*\}};", source, re.DOTALL | re.MULTILINE)
    if match is None:
        raise ValueError(f"no table {table}")
    return {
        name: "defunct" if handler == "_defunct_option" else kind.lower()
        for name, kind, handler in _ROW.findall(match[1])
    }


def rows(releases: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str | None]]:
    """Return option -> release -> type: a release in which the type is another than before; null: none.

    Args:
        releases: Release -> option -> type, the oldest release first.
    """
    table: dict[str, dict[str, str | None]] = {}
    for name in sorted({name for known in releases.values() for name in known}, key=str.lower):
        last: str | None = None
        for release, known in releases.items():
            if (kind := known.get(name)) != last:
                table.setdefault(name, {})[release] = kind
                last = kind
    return table


def newest_tags(repository: str) -> dict[str, str]:
    """Return release -> the tag of its newest patch, the oldest release first."""
    newest: dict[tuple[int, int], tuple[int, int]] = {}
    for line in _git(repository, "tag", "--list").split("\n"):
        if (match := _TAG.fullmatch(line)) is not None:
            release, patch = (int(match[1]), int(match[2])), (int(match[3]), int(match[4]))
            newest[release] = max(patch, newest.get(release, patch))
    supported = [release for release in RELEASES if release >= min(TRAITS)]
    return {
        spell(release): "slurm-{:02d}-{:02d}-{}-{}".format(*release, *newest[release])
        for release in supported
    }


def _git(repository: str, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", repository, *words], check=True, capture_output=True, text=True
    ).stdout


def main(repository: str) -> None:
    sources, tables = {}, {name: {} for name in TABLES}  # type: ignore[var-annotated]
    for release, tag in newest_tags(repository).items():
        source = _git(repository, "show", f"{tag}:{SOURCE}")
        sources[release] = {"tag": tag, "sha256": hashlib.sha256(source.encode()).hexdigest()}
        for name, table in TABLES.items():
            tables[name][release] = options(source, table)
    content = {"source": f"{REPOSITORY} {SOURCE}", "releases": sources}
    content |= {name: rows(releases) for name, releases in tables.items()}
    text = json.dumps(content, indent=1)
    # A row of an option on one line.
    text = re.sub(r"\{\n +([^{}]*?)\n +\}", lambda m: "{" + re.sub(r"\n +", " ", m[1]) + "}", text)
    FILE.write_text(text + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "clone", "--bare", "--filter=blob:none", REPOSITORY, folder], check=True)
            main(folder)
