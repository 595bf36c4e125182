"""Has Slurm read its configuration again, at a moment at which slurmctld and jobs survive it.

On many releases (`version.reconfigure_survives_scripts`) that is while none of slurmctld's scripts runs. Our
prolog runs while a job's nodes boot, so such a moment may have to be made.

Slurm's traps (docs/internals/slurm_traps.md): reconfigure-kills-scripts.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from node.elastic.view import log
from node.slurm import closing, hardware, version
from node.slurm.control import Slurm, SlurmError
from node.system import files, foreign

REQUEST, CLOSED = "reconfigure", "closed-partitions.json"
"""Files in the daemon's folder: that Slurm is to read its configuration; the partitions that are closed for a
moment. They outlive the daemon."""


class Reconfiguration:
    """The requests to read the configuration again, and how they are carried out.

    Args:
        control: Slurm's commands.
        lib: The daemon's folder, which also has the record of Slurm's release.
        state: slurmctld's folder, with the mark of a command that has closed partitions for longer.
        reconfigure: Has Slurm read its configuration, and keeps what people have changed at run time.
    """

    def __init__(
        self,
        control: Slurm,
        lib: Path,
        state: Path | None = None,
        reconfigure: Callable[[], None] | None = None,
    ) -> None:
        self._control = control
        self._lib = lib
        self._state = lib if state is None else state
        self._keeping = reconfigure
        self._lock = threading.Lock()

    def possible(self) -> bool:
        """Return whether `now` would probably succeed.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        return self._survives_scripts() or not self._scripts()

    def now(self) -> bool:
        """Have Slurm read its configuration, unless slurmctld might crash because of a script that runs.

        Returns:
            Whether Slurm has read it.

        Raises:
            SlurmError: slurmctld does not answer or refuses.
        """
        with self._lock:
            if self._survives_scripts():
                self._reconfigure()
                return True
            if self._scripts():
                return False
            # A job could start between the look and the command, so none may for a moment.
            closed = self._control.open_partitions()
            self._remember(closed)
            try:
                for name in closed:
                    self._control.close_partition(name)
                if self._scripts():
                    return False
                self._reconfigure()
                return True
            finally:
                self._reopen()

    def _reconfigure(self) -> None:
        if self._keeping is None:
            self._control.reconfigure()
        else:
            self._keeping()

    def request(self) -> str:
        """Have Slurm read its configuration now or, if need be, at a later call of `once`.

        Nothing is done while every node is off, because a node reads the configuration when it starts.

        Returns:
            Why it waits; empty if there is nothing to wait for.

        Raises:
            SlurmError: slurmctld does not answer or refuses. `once` tries again.
        """
        if all(node.is_powered_down for node in self._control.nodes().values()):
            return ""
        (self._lib / REQUEST).touch()
        if self.once():
            return ""
        return (
            "nodes that are up read the new configuration as soon as no job starts or ends, because "
            f"slurmctld {version.short(self._release())} may crash, or begin a job twice, if it is "
            "reconfigured meanwhile"
        )

    def once(self) -> bool:
        """Carry out a request that waits, and open partitions that an interrupted attempt has left closed.

        Returns:
            Whether a request was carried out.

        Raises:
            SlurmError: slurmctld does not answer or refuses.
        """
        if (self._lib / CLOSED).exists():
            with self._lock:
                self._reopen()
        if not (self._lib / REQUEST).exists() or not self.now():
            return False
        (self._lib / REQUEST).unlink(missing_ok=True)
        log("Slurm has read its configuration again")
        return True

    def _scripts(self) -> bool:
        # Slurm sets CONFIGURING before PrologSlurmctld and keeps COMPLETING until EpilogSlurmctld has ended.
        return any(job.is_starting or job.is_completing for job in self._control.jobs().values())

    def _release(self) -> str:
        record = hardware.read(self._lib)
        return "" if record is None else record.release

    def _survives_scripts(self) -> bool:
        return version.reconfigure_survives_scripts(self._release())

    def _remember(self, closed: Sequence[str]) -> None:
        # A power failure must not leave an empty file, and partitions that nobody opens.
        files.write(self._lib / CLOSED, json.dumps(list(closed)).encode(), durable=True)

    def _reopen(self) -> None:
        """Open the partitions that were closed.

        Those that a command has closed meanwhile are that command's to open.
        """
        file = self._lib / CLOSED
        mark = closing.read(self._state)
        others = [] if mark is None else mark.names
        try:
            names = [str(name) for name in foreign.record(file)]
        except (OSError, ValueError, TypeError) as error:
            log(f"{file} cannot be read ({error!r}): partitions may be DOWN that nobody opens")
            names = []
        for name in (name for name in names if name not in others):
            # A partition may be gone from the configuration that was just read. If slurmctld does not answer,
            # `once` tries again.
            with contextlib.suppress(SlurmError):
                self._control.open_partition(name)
        if self._control.ping():
            file.unlink(missing_ok=True)
