"""Make tests/node/data/slurm-reasons.json, all reasons for which Slurm says that a job waits or ended:

    PYTHONPATH=. .venv/bin/python tools/slurm_reasons.py RELEASE=LIBRARY...

A LIBRARY is a `libslurmfull.so` of Debian's package slurm-wlm-basic-plugins. The words are what its own
function makes of each number, so they are Slurm's and not ours. A library of another distribution is loaded
by that distribution's linker: `ld-linux-x86-64.so.2 --library-path ITS/LIB .venv/bin/python tools/...`.
Releases that are not named keep what the file has of them.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

FILE = Path(__file__).parents[1] / "tests" / "node" / "data" / "slurm-reasons.json"
NAMES = ("slurm_job_state_reason_string", "slurm_job_reason_string")
"""The function of 23.11 and later, and that of earlier releases."""
MOST = 400


def reasons(library: str) -> list[str]:
    """Return a library's words for all numbers of reasons."""
    loaded = ctypes.CDLL(library)
    function = next(getattr(loaded, name) for name in NAMES if hasattr(loaded, name))
    function.restype = ctypes.c_char_p
    words = [function(number).decode() for number in range(MOST)]
    # A number that no reason has is told as a number, or as the reason that there is none.
    unknown = words[-1]
    return sorted({word for word in words if word != unknown and not word.isdigit()})


if __name__ == "__main__":
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    for argument in sys.argv[1:]:
        release, _, library = argument.partition("=")
        known[release] = reasons(library)
    FILE.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
