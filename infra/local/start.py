"""The first code on a container machine: run the loader from the folder that is the cluster's bucket.

What it is on a cloud, where the loader has to be fetched first: one small file in the user data.
"""

import os
import sys

CODE = __file__.rpartition("/")[0]


def main() -> None:
    """Our arguments are `--bucket BUCKET`, then what else the loader is told."""
    loader = f"{sys.argv[2]}/loader.py"
    os.execv(sys.executable, [sys.executable, loader, "--code", CODE, *sys.argv[1:]])


if __name__ == "__main__":
    main()
