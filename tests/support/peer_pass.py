"""Times the passes of our own elastic daemon, in a process as its own is, beside `peer_launch.passes`:

    .venv/bin/python -m tests.support.peer_pass SETTINGS NUMBER [URL]

URL is that of a stand-in of Compute Engine. EC2's is in the environment.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from pathlib import Path

from node.design.folders import Folders
from node.design.published import read_settings
from node.elastic import drivers
from node.elastic.daemon import Elastic
from node.elastic.drivers.gce import driver as gce_driver
from node.slurm.control import Control
from tests.support.peer_launch import timed


def at_stand_in(url: str) -> None:
    """Have the driver, with the machine's credentials, call another address than Google's."""
    gce_driver.Compute = functools.partial(  # type: ignore[assignment,attr-defined]
        gce_driver.Compute,  # type: ignore[attr-defined]
        endpoint=f"{url}/compute/v1",
    )


def main(settings_file: str, number: int, url: str = "") -> None:
    settings = read_settings(Path(settings_file))
    folders = Folders(settings)
    if url:
        at_stand_in(url)
    os.environ["SLURM_CONF"] = str(folders.slurm_conf)
    control = Control(str(folders.slurm_conf))
    elastic = Elastic(settings, control, drivers.load(settings), Path(str(folders.elastic)))
    with contextlib.redirect_stdout(sys.stderr):
        found = timed(elastic.look, number)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
