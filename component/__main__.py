"""The plugin of the package: the engine starts it in the folder of the program that has the cluster."""

import sys
from pathlib import Path

CODE = Path(__file__).absolute().parents[1]
"""The project, whose folder `component` Python has in its path."""

if __name__ == "__main__":
    sys.path[0] = str(CODE)
    from pulumi.provider import main

    from component.provider import ClusterProvider
    from infra.program import launcher, mode

    launcher.remember(CODE)
    mode.FOLDER.set(Path.cwd())
    main(ClusterProvider(), sys.argv[1:])
