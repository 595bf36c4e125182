"""Writes Slurm's configuration files on the controller: at its boot, and before each start of slurmctld.

Slurm's traps (docs/internals/slurm_traps.md): runtime-changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from node.design.folders import Folders
from node.design.model import Settings
from node.design.published import read_settings
from node.slurm import closing, conf, hardware, in_force, runtime, topology, trial, version
from node.system import files, foreign
from node.system.codec import from_json, to_json

WriteFile = Callable[[Path, bytes], object]
"""Writes a file atomically."""
MOST_BYTES = 64 << 20
"""The most bytes of the record of what people have changed."""
RECORDED_SECONDS = 60.0
"""After how long the record surely has what a command has closed (`node.elastic.runtime`)."""


@dataclass(frozen=True, slots=True)
class Configured:
    """What slurm.conf has besides the design.

    Attributes:
        lines: The nodes with former lines, and the partitions that accept no jobs yet.
        replaced: For each change of people's at run time that ends with the next start, a sentence.
        refused: Why the stack file's own options of slurm.conf are not in force; empty if they are.
    """

    lines: hardware.Lines
    replaced: tuple[str, ...]
    refused: str = ""

    def facts(self) -> dict[str, str]:
        """Return what `up` says, as facts of the boot's report."""
        said = {"replaced": "; ".join(self.replaced), "settings": self.refused}
        return {name: sentence for name, sentence in said.items() if sentence}


def configure(settings: Settings, release: str, write: WriteFile) -> Configured:
    """Write the configuration for a release of Slurm.

    Nodes whose hardware was changed in the stack file keep their former lines as long as they are in use.
    What people have changed at run time stays (`node.slurm.runtime`). The stack file's own options of
    slurm.conf are tried first (`node.slurm.trial`).

    Raises:
        OSError: A file cannot be written, or nothing can be tried.
        ValueError: A newer release has written the state that slurmctld would read, or the settings cannot be
            rendered.
    """
    folders = Folders(settings)
    etc, lib, state = (Path(str(path)) for path in (folders.etc, folders.elastic, folders.state))
    if (before := hardware.read(lib)) is not None:
        version.check_takeover(before.release, release)
    deviation, record = hardware.lines(settings.design, release, lib)
    write(lib / hardware.RECORD, hardware.text(record).encode())
    places = topology.read(lib)
    has_epilog = not version.cleans_up_requeued_jobs(release)

    def fault(tried: Settings) -> str:
        if not trial.possible():
            return ""
        return trial.fault(tried, conf.render(tried, version.parse(release), deviation, places), lib)

    settings, refused = in_force.choose(settings, release, state, fault)
    designed, changes = conf.designed(settings, deviation), read_changes(state) or runtime.Record()
    kept = runtime.merge(changes, designed)
    kept = runtime.with_closed(kept, designed, closed_by_command(changes, closing.read(state), time.time()))
    rendered = conf.render(settings, version.parse(release), deviation, places, kept, has_epilog=has_epilog)
    for name, content in rendered.items():
        folder = etc
        if name == topology.FILE:
            # The elastic daemon writes this file too, and may not write to /etc.
            folder = lib
            files.link(etc / name, str(lib / name))
        write(folder / name, content.encode())
    hardware.done(lib)
    # slurm.conf has all of it. From 23.11 on slurmctld would prefer the partitions that it has saved to those
    # of slurm.conf at this start, as it is to do when it only reads its configuration again.
    for name in ("part_state", "part_state.old"):
        (state / name).unlink(missing_ok=True)
    return Configured(deviation, tuple(kept.replaced), refused)


def read_changes(state: Path) -> runtime.Record | None:
    """Return the record of what people have changed at run time; `None` if there is none that can be read.

    Args:
        state: slurmctld's folder of saved state.
    """
    try:
        data = foreign.read(state / runtime.FILE, MOST_BYTES).data
        return from_json(runtime.Record, foreign.parse(data))
    except FileNotFoundError:
        return None
    except (OSError, foreign.UnusableError, ValueError) as error:
        print(f"what people have changed in Slurm at run time cannot be read: {error}", flush=True)
        return None


def closed_by_command(changes: runtime.Record, mark: closing.Mark | None, now: float) -> dict[str, str]:
    """Return the partitions that a command has closed, and nobody has opened since, with their states.

    Without the mark, whatever the record says: the command has opened them, and the record is from before
    that. With it, what the record does not have is open by now, unless the mark is as young as that.

    Args:
        mark: The command's mark; `None` if there is none.
        now: The time, in seconds since the epoch.
    """
    # A mark from the future is of a clock that was wrong, and may be of any age.
    young = mark is not None and abs(now - mark.at) < RECORDED_SECONDS
    return {name: state for name, state in closing.states(mark).items() if young or name in changes.closed}


def write_changes(state: Path, record: runtime.Record) -> bool:
    """Write the record, and return whether it is new. It is on the disk when this returns."""
    content = json.dumps(to_json(record), sort_keys=True).encode()
    return files.write(state / runtime.FILE, content, 0o600, durable=True)


def main(settings_file: str) -> int:
    """Write the configuration. systemd or the machine's init runs this before it restarts slurmctld."""
    settings = read_settings(Path(settings_file))
    record = hardware.read(Path(str(Folders(settings).elastic)))
    if record is not None:
        for sentence in configure(settings, record.release, files.write).facts().values():
            print(sentence, flush=True)
    return 0
