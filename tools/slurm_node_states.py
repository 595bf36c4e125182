"""Make tests/node/data/slurm_node_states.json, all words of which Slurm makes a node's state:

    PYTHONPATH=. .venv/bin/python tools/slurm_node_states.py CLONE

CLONE is a clone of https://github.com/SchedMD/slurm with the branches slurm-22.05 to slurm-26.05. The words
are those of the tables node_states and node_state_flags in src/common/slurm_protocol_defs.c, from which
node_state_string_complete() makes what `scontrol show node` shows.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parents[1] / "tests" / "node" / "data" / "slurm_node_states.json"
RELEASES = ("22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05")
SOURCE = "src/common/slurm_protocol_defs.c"
TABLES = {"bases": "node_states", "flags": "node_state_flags"}
_ROW = re.compile(r'\{ *NODE_[A-Z_]+, *"([A-Z_]+)" *\}')


def words(source: str, table: str) -> list[str]:
    """Return the words of one table of the source."""
    rows = re.search(rf" {table}\[\] = \{{(.*?)^\}};", source, re.DOTALL | re.MULTILINE)
    if rows is None:
        raise ValueError(f"{SOURCE} has no table {table}")
    return sorted(_ROW.findall(rows[1]))


def release(clone: str, name: str) -> dict[str, object]:
    """Return a release's words, and the commit that they are from."""

    def git(*command: str) -> str:
        done = subprocess.run(["git", "-C", clone, *command], capture_output=True, text=True, check=True)
        return done.stdout

    source = git("show", f"slurm-{name}:{SOURCE}")
    commit = git("rev-parse", f"slurm-{name}").strip()
    return {"commit": commit, **{key: words(source, table) for key, table in TABLES.items()}}


if __name__ == "__main__":
    found = {
        "source": f"https://github.com/SchedMD/slurm, branches slurm-RELEASE: {SOURCE}",
        "releases": {name: release(sys.argv[1], name) for name in RELEASES},
    }
    FILE.write_text(json.dumps(found, indent=1) + "\n")
