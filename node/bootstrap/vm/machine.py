"""The beginning of a whole machine's boot: its name, the target of its report, and its service manager."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from node.bootstrap.command import run
from node.bootstrap.report import file_sink
from node.bootstrap.services import Services
from node.bootstrap.systemd_services import SystemdServices
from node.bootstrap.vm import clouds
from node.design.folders import Folders
from node.design.model import Settings

REPORT_SECONDS = 5.0
"""The time limit for publishing a report. A report that fails is left out, because the next has it all."""


def begin(settings: Settings, host: str | None, bucket: str) -> tuple[str, Callable[[str], None], Services]:
    """Return the machine's name, the function that publishes its boot report, and its service manager.

    Raises:
        SystemExit: The machine's name is unknown.
    """
    services = SystemdServices(run)
    if "://" not in bucket and settings.design.provider != "local":  # an image that is being made, a test
        if host is None:
            raise SystemExit("a machine without a cloud needs its name (--host)")
        return host, file_sink(Path(bucket) / "boot" / f"{host}.json"), services
    host = host or clouds.of(settings).node()
    return host, bucket_sink(settings, bucket, host), services


def update_programs(settings: Settings, settings_file: Path, role: str) -> None:
    """Write the programs that Slurm calls into the new code.

    A controller that boots again after an update keeps working meanwhile. Its slurmctld calls the programs by
    a path that leads to the new code already. Without the programs there, nodes would not start or end.
    """
    requests = Path(str(Folders(settings).elastic / "requests"))
    if role == "controller" and requests.is_dir():
        # Imported late, because no other machine needs it.
        from node.elastic import programs

        programs.write(settings, settings_file)


def bucket_sink(settings: Settings, bucket: str, host: str) -> Callable[[str], None]:
    """Return a function that writes the report to the bucket, as often as the bucket allows."""
    cloud = clouds.of(settings)
    target = cloud.bucket(bucket, attempts=2, timeout=REPORT_SECONDS)

    def put(text: str) -> None:
        target.put(f"boot/{host}.json", text.encode())

    return Paced(put, cloud.write_seconds) if cloud.write_seconds else put


class Paced:
    """A writer that forwards texts with a pause between two: of those in a pause only the last.

    Args:
        put: Takes a text. If a text is forwarded at once, its caller gets `put`'s error.
        seconds: The shortest time between the starts of two calls of `put`.
    """

    def __init__(self, put: Callable[[str], None], seconds: float) -> None:
        self._put = put
        self._seconds = seconds
        self._lock = threading.Lock()
        self._due = 0.0
        self._text = ""
        self._later: threading.Timer | None = None

    def __call__(self, text: str) -> None:
        with self._lock:
            self._text = text
            wait = self._due - time.monotonic()
            if self._later is None and wait > 0:
                # This is not a daemon thread, so the process waits for it.
                self._later = threading.Timer(wait, self._forward_later)
                self._later.start()
            later = self._later
            if later is None:
                self._forward()
        # After the last report of a boot the machine may be switched off.
        if later is not None and json.loads(text)["state"] != "booting":
            later.join()

    def _forward_later(self) -> None:
        with self._lock:
            self._later = None
            try:
                self._forward()
            except OSError as error:
                print(f"the boot report is not published: {error}", file=sys.stderr, flush=True)

    def _forward(self) -> None:
        try:
            self._put(self._text)
        finally:
            self._due = time.monotonic() + self._seconds
