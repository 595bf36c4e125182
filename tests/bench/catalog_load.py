"""How long the facts of machines take to load, paired with another checkout's:

    .venv/bin/python tests/bench/catalog_load.py [OTHER_CHECKOUT]

Each sample is a process of its own, because a command loads them once; only the load is timed, not the
import. The two checkouts take turns, so that other load on the machine affects both. Exits 1 if the median is
50 ms or more.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_MS = 50.0
SAMPLES = 15
CODE = """
import time
from infra.instance_types import catalog
load = getattr(catalog, "tables", catalog.catalog)
began = time.perf_counter()
facts = load()
print((time.perf_counter() - began) * 1000, len(facts.machines))
"""


def sample(checkout: Path) -> tuple[float, int]:
    """Milliseconds of one load, and how many types there are."""
    env = os.environ | {"PYTHONPATH": str(checkout)}
    said = subprocess.run(
        [sys.executable, "-c", CODE], cwd=checkout, env=env, check=True, capture_output=True, text=True
    ).stdout.split()
    return float(said[0]), int(said[1])


def main() -> None:
    checkouts = [ROOT, *(Path(path).resolve() for path in sys.argv[1:2])]
    taken: dict[Path, list[tuple[float, int]]] = {checkout: [] for checkout in checkouts}
    for _ in range(SAMPLES):
        for checkout in checkouts:
            taken[checkout].append(sample(checkout))
    for checkout, samples in taken.items():
        times = [milliseconds for milliseconds, _ in samples]
        print(f"{checkout}: {samples[0][1]} types, median {statistics.median(times):.1f} ms, "
              f"{min(times):.1f} to {max(times):.1f} ms")  # fmt: skip
    if statistics.median(milliseconds for milliseconds, _ in taken[ROOT]) >= LIMIT_MS:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
