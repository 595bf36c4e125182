"""How long a new user waits: fresh clone to printed result, again after `down`, and a plan:

    .venv/bin/python -m tests.bench.up_time --folder /var/tmp

Clones this checkout's last commit into a new folder whose path has spaces, with empty caches for uv, pip and
the project, and an empty state folder, and runs README's commands there. The distribution's packages are
installed beforehand or by the run, as the machine has it.

The quick form keeps this user's caches and leaves out the training.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.figures import ROOT, parser, spread

PRINTS = r"^fresh clone to the end of up: \d+ s; up again after down: \d+ s\nplan: \d+\.\d\d s?"


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, plans=1)
    arguments.add_argument("--folder", type=Path, help="where the clone is made; else in /tmp")
    arguments.add_argument("--plans", type=int, default=5)
    return arguments


def main() -> int:
    chosen = options().parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        clone, home = Path(folder) / "a new clone", Path(folder) / "home"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        home.mkdir()
        up = ["up"]
        if chosen.quick:
            up += ["--no-benchmark"]
            env = os.environ | {"XDG_STATE_HOME": str(home / "state")}
        else:
            env = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "UV_", "SLURM_"))}
            env |= {"HOME": str(home), "PIP_NO_CACHE_DIR": "1"}

        def run(*arguments: str) -> float:
            began = time.monotonic()
            done = subprocess.run(
                ["./cluster", *arguments], cwd=clone, env=env, capture_output=True, text=True, check=False
            )
            if done.returncode:
                sys.exit(f"./cluster {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}")
            seconds = time.monotonic() - began
            of_up = re.findall(r"^up after.*", done.stderr, re.MULTILINE)
            print(f"./cluster {' '.join(arguments)}: {seconds:.1f} s {' '.join(of_up)}", flush=True)
            return seconds

        try:
            first = run(*up)
            run(*up)
            run("down")
            second = run(*up)
            run("down")
            plans = [run("plan") for _ in range(chosen.plans)]
        except BaseException:
            # The folder goes, and a cluster without its checkout would stay.
            subprocess.run(["./cluster", "down"], cwd=clone, env=env, stdin=subprocess.DEVNULL, check=False)
            raise
    print(f"fresh clone to the end of up: {first:.0f} s; up again after down: {second:.0f} s")
    print(f"plan: {spread(plans, 2)} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
