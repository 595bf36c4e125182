"""How long a new user waits: fresh clone to printed result, again after `down`, and a plan.

`python3 tests/bench/up_time.py [FOLDER]` (any Python; it uses nothing of the project's environment)

Clones this checkout's last commit into a new folder whose path has spaces, with empty caches for uv, pip and
the project, and an empty state folder, and runs README's commands there. The distribution's packages are
installed beforehand or by the run, as the machine has it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLANS = 5


def main() -> None:
    base = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        clone = Path(folder) / "a new clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        home = Path(folder) / "home"
        home.mkdir()
        env = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "UV_", "SLURM_"))}
        env |= {"HOME": str(home), "PIP_NO_CACHE_DIR": "1"}

        def run(*arguments: str) -> float:
            started = time.monotonic()
            done = subprocess.run(
                ["./cluster", *arguments], cwd=clone, env=env, capture_output=True, text=True, check=False
            )
            if done.returncode:
                sys.exit(f"./cluster {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}")
            lines = [line for line in done.stderr.splitlines() if line.startswith("up after")]
            print(
                f"./cluster {' '.join(arguments)}: {time.monotonic() - started:.1f} s {' '.join(lines)}",
                flush=True,
            )
            return time.monotonic() - started

        first = run("up")
        run("up")
        run("down")
        second = run("up")
        run("down")
        plans = [run("plan") for _ in range(PLANS)]
        print(f"fresh clone to the end of up: {first:.0f} s; up again after down: {second:.0f} s")
        print(f"plan: median {statistics.median(plans):.2f} s, worst {max(plans):.2f} s")


if __name__ == "__main__":
    main()
