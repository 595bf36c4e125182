"""Records what people change in Slurm at run time, for slurmctld's next start (`node.slurm.runtime`).

Slurm's traps (docs/internals/slurm_traps.md): runtime-changes.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from node.design.folders import Folders
from node.design.model import Settings
from node.elastic import reconfiguration
from node.elastic.view import log
from node.slurm import closing, conf, configure, hardware, in_force, runtime
from node.slurm.control import LAST_WEIGHT, Slurm, SlurmError
from node.system.waiting import wait_at_most

WATCH_SECONDS = 0.5
"""The pause between two looks at slurmctld's saved partitions. It saves them within five seconds of a change,
together with the jobs: a slurmctld that is killed knows no job of a partition that it has not saved."""

NODES_SECONDS = 3.0
"""The least pause between two readings of all nodes."""
NODES_SHARE = 20.0
"""The least pause after a reading of all nodes, as a multiple of the time that it took."""
ANSWER_SECONDS = 30.0
"""How long slurmctld may take to read its configuration."""
POLL_SECONDS = 0.1


class RuntimeChanges:
    """The record of what people have changed.

    Args:
        settings: The design with which slurmctld was started.
        control: Slurm's commands.
        lib: The daemon's folder.
    """

    def __init__(self, settings: Settings, control: Slurm, lib: Path) -> None:
        self._settings = settings
        self._control = control
        self._lib = lib
        self._conf = Path(str(Folders(settings).slurm_conf))
        self._state = Path(str(Folders(settings).state))
        self._lock = threading.Lock()
        self._own_conf = False
        self._started: float | None = None
        self._configured = -math.inf
        self._designed: tuple[Mapping[str, hardware.Hardware], runtime.Designed] | None = None

    def once(self, since: float = math.inf) -> None:
        """Record what people have changed since.

        Args:
            since: A reading of the nodes that began at this time or later, on `time.monotonic`, will do.
                Without it they are read.

        Raises:
            SlurmError: slurmctld does not answer. The next call looks again.
        """
        with self._lock:
            before = configure.read_changes(self._state) or runtime.Record()
            config = self._control.show_config()
            current = self._is_read(config)
            # Another daemon's slurm.conf, which slurmctld has not read yet, says nothing about what it has.
            self._own_conf = self._own_conf or current
            if not self._own_conf:
                return
            marked = self._marked()
            # A slurmctld that has started since the last look may have read another slurm.conf meanwhile.
            before_start = self._started != (started := runtime.start_time(config))
            self._started = started
            shown = self._shown(config, math.inf if before_start else since)
            # During a start, and where it fails, slurmctld knows no partition at all.
            if not shown.partitions.keys() & self._settings.design.slurm_partitions().keys():
                return
            record = self._compared(shown, before, marked)
            if not current:
                record = replace(record, nodes=before.nodes)
            self._write(record, before)

    def partitions(self) -> None:
        """Record the partitions only.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        with self._lock:
            if not self._own_conf:
                return
            before = configure.read_changes(self._state) or runtime.Record()
            marked = self._marked()
            shown = runtime.shown_partitions(self._control.show_partitions())
            if shown.keys() & self._settings.design.slurm_partitions().keys():
                now = self._compared(runtime.Designed(shown, {}, {}), before, marked)
                changed = replace(before, own=now.own, partitions=now.partitions, closed=now.closed)
                self._write(changed, before)

    def run(self) -> None:
        """Record what has changed whenever slurmctld has saved it, for ever."""
        partitions = nodes = due = 0.0
        while True:
            time.sleep(WATCH_SECONDS)
            try:
                began = time.monotonic()
                saved_partitions, saved_nodes = self._saved("part_state"), self._saved("node_state")
                if saved_nodes != nodes and began >= due:
                    self.once(began)
                    # Nodes change all the time, and there may be thousands.
                    due = began + max(NODES_SECONDS, NODES_SHARE * (time.monotonic() - began))
                    partitions, nodes = saved_partitions, saved_nodes
                elif saved_partitions != partitions:
                    self.partitions()
                    partitions = saved_partitions
            except (SlurmError, OSError):
                continue  # slurmctld starts
            except Exception:  # the next look reads everything again
                traceback.print_exc()

    def _saved(self, name: str) -> float:
        """Return when slurmctld saved a file; 0 if it has not yet."""
        with contextlib.suppress(FileNotFoundError):
            return (self._state / name).stat().st_mtime
        return 0.0

    def reconfigure(self) -> None:
        """Have Slurm read slurm.conf again, and set again what people have changed since slurmctld's start.

        Slurm itself keeps partitions then, but neither weights and features of nodes nor its own options.

        Raises:
            SlurmError: slurmctld does not answer, or refuses the command.
        """
        self.once()
        with self._lock:
            self._control.reconfigure()
            self._configured = time.monotonic()
            wait_at_most(self._control.ping, ANSWER_SECONDS, POLL_SECONDS)
            record = configure.read_changes(self._state) or runtime.Record()
            for words in runtime.commands(record, self._shown(self._control.show_config())):
                try:
                    self._control.change(*words)
                except SlurmError as error:
                    log(f"what somebody has set at run time is lost: {error}")

    def _shown(self, config: str, since: float = math.inf) -> runtime.Designed:
        """Return what slurmctld has.

        Args:
            config: `Slurm.show_config`.
            since: As for `once`.
        """
        return runtime.Designed(
            runtime.shown_partitions(self._control.show_partitions()),
            runtime.shown_nodes(self._control.nodes_since(max(since, self._configured))),
            runtime.shown_controller(config),
        )

    def _marked(self) -> dict[str, str]:
        """Return the partitions that the mark of a command names, with their states."""
        return closing.states(closing.read(self._state))

    def _compared(
        self, shown: runtime.Designed, before: runtime.Record, marked: Mapping[str, str]
    ) -> runtime.Record:
        """Return what people have changed.

        Args:
            marked: What the mark of a command said before slurmctld was asked. A command may have begun or
                ended meanwhile, so the present mark counts as well.
        """
        record = hardware.read(self._lib)
        kept = record.kept(self._settings.design) if record is not None else {}
        unseen = kept.keys() - set(record.seen if record is not None else ())
        if self._designed is None or self._designed[0] != kept:
            settings = in_force.settings_in_force(self._settings, self._state)
            self._designed = kept, conf.designed(settings, hardware.Lines(kept))
        designed = self._designed[1]
        shown = replace(shown, nodes=_without_ours(shown.nodes, designed.nodes))
        closed = self._closed() | {
            name
            for name, options in shown.partitions.items()
            if unseen and not unseen.isdisjoint(runtime.nodes_of(options))
        }
        return runtime.compare(shown, designed, before, closed.__contains__, {**self._marked(), **marked})

    def _closed(self) -> frozenset[str]:
        """Return the partitions that this daemon has closed for a moment."""
        names: set[str] = set()
        for file in (reconfiguration.CLOSED, hardware.CLOSED):
            with contextlib.suppress(OSError, ValueError, TypeError):
                names.update(map(str, json.loads((self._lib / file).read_text())))
        return frozenset(names)

    def _is_read(self, config: str) -> bool:
        """Return whether slurmctld has read the present slurm.conf: it has started since that was written."""
        started = runtime.start_time(config)
        return started is not None and int(self._conf.stat().st_mtime) <= started

    def _write(self, record: runtime.Record, before: runtime.Record) -> None:
        if configure.write_changes(self._state, record):
            for line in runtime.news(before, record):
                log(line)


def _without_ours(
    shown: Mapping[str, runtime.Fields], designed: Mapping[str, runtime.Fields]
) -> dict[str, runtime.Fields]:
    """Return the nodes without the weight that the daemon gives to those that Slurm is to choose last."""
    ours = str(LAST_WEIGHT)
    return {
        name: {**options, "Weight": designed[name]["Weight"]}
        if options.get("Weight") == ours and name in designed
        else options
        for name, options in shown.items()
    }
