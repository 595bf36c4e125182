"""Random jobs, faults and restarts on a real local cluster, and an audit of what became of them.

`.venv/bin/python tests/bench/soak.py [--minutes 30] [--seed N] [--machines container] [--faults kill,freeze]`

It brings up a cluster of its own on this machine. For N minutes it submits jobs (sizes, lengths, arrays,
GPUs, --no-requeue), cancels and requeues them, sets the local cloud's limits, kills, freezes and takes back
machines, and kills daemons. Then it removes all faults, waits until the queue is empty, and checks that

- every job is accounted for: completed, cancelled by us, or ended with its machine where it asked for that;
- every run that was cut off was cut off by a fault of this program, of its job or of its machine;
- no machine and no process is left, every node is idle and off, and there were never too many machines.

It prints the seed and, every 10 s, what is going on. It exits 1 with the findings and the folder of the logs.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.soak.harness import parse, soak  # noqa: E402


def main() -> int:
    try:
        return 1 if soak(parse(str(__doc__))).findings else 0
    except KeyboardInterrupt:
        print("interrupted: the cluster is gone, the logs are kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
