"""Looks whether the directory of users answers the controller, so that `status` says when it does not."""

from __future__ import annotations

import time

from node.bootstrap.command import run
from node.bootstrap.vm import directory as sssd
from node.design.directory import Directory
from node.elastic.steps import Step

PAUSE_SECONDS = 60.0


class DirectoryWatch:
    """The look, in a thread of its own: a server that is silent must not delay the other steps."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        does = "sees whether the directory of users answers; users whom SSSD has cached can log in meanwhile"
        self.step = Step("directory", does, self._look)

    def run(self) -> None:
        """Look for ever."""
        while True:
            self.step.run()
            time.sleep(PAUSE_SECONDS)

    def _look(self) -> None:
        # Slurm's user has no password of the directory: that a server answers is enough.
        if why := sssd.problem(self._directory, sssd.certificate(self._directory), run):
            raise ConnectionError(why)
