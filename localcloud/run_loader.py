"""Start the loader on a container machine, from the folder that serves as the cluster's bucket.

This is the first code of ours that runs there. On a cloud, the same small file in the user data downloads the
loader first.
"""

import os
import sys

CODE = __file__.rpartition("/")[0]


def main() -> None:
    """Run the loader. The arguments are `--bucket BUCKET`, then further arguments for the loader."""
    loader = f"{sys.argv[2]}/loader.py"
    os.execv(sys.executable, [sys.executable, loader, "--code", CODE, *sys.argv[1:]])


if __name__ == "__main__":
    main()
