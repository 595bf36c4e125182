"""A cloud's machine at the beginning of a boot: who it is, where its report goes, who keeps its services."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from infra.node.bootstrap.command import run
from infra.node.bootstrap.report import file_sink
from infra.node.bootstrap.services import Services
from infra.node.bootstrap.vm import clouds
from infra.node.bootstrap.vm.systemd import SystemdServices
from infra.node.model import Folders, Settings

REPORT_SECONDS = 5.0
"""A report that cannot be published soon is not: the next one holds all that it says."""


def begin(settings: Settings, host: str | None, bucket: str) -> tuple[str, Callable[[str], None], Services]:
    """The machine's name, what publishes its boot report, and the keeper of its services.

    Raises:
        SystemExit: nobody says who it is.
    """
    services = SystemdServices(run)
    if "://" not in bucket and settings.design.provider != "local":  # an image that is being made, a test
        if host is None:
            raise SystemExit("a machine without a cloud is told its name (--host)")
        return host, file_sink(Path(bucket) / "boot" / f"{host}.json"), services
    host = host or clouds.of(settings).node()
    return host, bucket_sink(settings, bucket, host), services


def carry_on(settings: Settings, settings_file: Path, role: str) -> None:
    """Have the programs that Slurm calls in the code that counts from now on.

    A head that boots again for what has been published goes on working meanwhile: its slurmctld calls them by
    a path that leads to the new code already, and nodes would be neither started nor ended.
    """
    lib = Path(str(Folders(settings).lib))
    if role == "controller" and (lib / "requests").is_dir():
        # Here and not above: no other machine needs it.
        from infra.node.elastic import programs

        programs.write(settings, settings_file)


def bucket_sink(settings: Settings, bucket: str, host: str) -> Callable[[str], None]:
    """Writes the report to the cluster's bucket, as often as that takes it."""
    own = clouds.of(settings)
    place = own.bucket(bucket, attempts=2, timeout=REPORT_SECONDS)

    def put(text: str) -> None:
        place.put(f"boot/{host}.json", text.encode())

    return Paced(put, own.write_seconds) if own.write_seconds else put


class Paced:
    """Hands texts on with a pause between two; of those that come meanwhile the last one only.

    Args:
        put: for the text; its errors are for whoever gives a text that is handed on at once.
        seconds: between two starts of it.
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
                # No daemon: the process ends when it is done.
                self._later = threading.Timer(wait, self._catch_up)
                self._later.start()
            later = self._later
            if later is None:
                self._hand_on()
        # After the last one of a boot the machine may be switched off.
        if later is not None and json.loads(text)["state"] != "booting":
            later.join()

    def _catch_up(self) -> None:
        with self._lock:
            self._later = None
            try:
                self._hand_on()
            except OSError as error:
                print(f"the boot report is not published: {error}", file=sys.stderr, flush=True)

    def _hand_on(self) -> None:
        try:
            self._put(self._text)
        finally:
            self._due = time.monotonic() + self._seconds
