"""The first program of a machine that never registers: the machine runs, and its bootstrap never starts.

Run by the machine's init in place of the loader.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
