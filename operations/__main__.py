"""Starts a module of this folder, with the project in Python's path: `python operations operations.NAME …`.

Resources' command lines do so (`infra.program.launcher`). The working folder stays the program's own and is
not in the path. What the module starts inherits no path.
"""

import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).absolute().parents[1])
    from infra.program import mode

    mode.FOLDER.set(Path(os.environ.get("SLURM_STACKS_PROJECT", ".")).resolve())
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
