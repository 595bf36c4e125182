"""The former place of a command. Stacks of versions without `cli/` have this command in their state."""

import os
import sys

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-m", "cli.aws.operations", *sys.argv[1:]])
