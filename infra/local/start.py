"""The first code on a container machine: run the loader from the folder that is the cluster's bucket.

What it is on a cloud, where the loader has to be fetched first: one small file in the user data.
"""

import argparse
import os
import sys
from pathlib import Path

CODE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bucket", "role"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    line = [sys.executable, f"{options.bucket}/loader.py", "--bucket", options.bucket, "--code", str(CODE)]
    line += ["--role", options.role]
    os.execv(line[0], line)


if __name__ == "__main__":
    main()
