"""Random jobs, faults and restarts on a real local cluster, and an audit of what became of them.

`.venv/bin/python tests/bench/soak.py [--minutes 30] [--seed N] [--machines namespace] [--faults kill,freeze]`

Brings up a cluster of its own on this machine. For N minutes it submits jobs (sizes, lengths, arrays, GPUs,
--no-requeue), cancels and requeues them, sets the local cloud's limits, has machines die, freeze and be taken
back, and kills daemons. Then everything is set right, the queue empties, and it is looked at that

- every job is accounted for: completed, cancelled by us, or ended with its machine where it asked for that;
- no run was cut off but by what was done on purpose, to its job or to its machine;
- no machine, no process and no node that is not idle and off is left, and there were never too many.

Prints the seed and every 10 s what is going on. Exits 1 with the findings and the folder of the logs.
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
