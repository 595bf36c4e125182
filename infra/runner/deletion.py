"""Deleting many resources: dependents first, independent ones at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from infra.runner.lifecycle import Lifecycle
from infra.runner.state import Record

WORKERS = 16
SIGNAL_SECONDS = 1.0
"""How long Ctrl-C may go unheard that comes a moment before a wait."""


def protected(records: Sequence[Record]) -> list[str]:
    """The names of those that must not be deleted."""
    return [record.name for record in records if record.protect]


def delete_all(life: Lifecycle, records: Sequence[Record]) -> None:
    """Delete the records in the reverse order of their dependencies.

    A resource is deleted when nothing that needs it is left. What a failed one needs is kept, and everything
    else goes on; the failures are in `life.failures`.
    """
    left = list(reversed(records))
    urns = {record.urn for record in records}
    failed: list[Record] = []
    running: dict[Future[bool], Record] = {}
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="delete") as pool:
        while True:
            holders = [*left, *running.values(), *failed]
            if not life.stopping.is_set():
                for record in _free(left, holders):
                    left.remove(record)
                    gone = record.deleted_with in urns
                    replaced = any(record is doomed for doomed in life.state.doomed)
                    running[pool.submit(life.delete, record, gone=gone, replaced=replaced)] = record
            if not running:
                return
            # A signal is handled between two waits, where it has not ended this one.
            done, _ = wait(running, SIGNAL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                record = running.pop(future)
                if not future.result():
                    failed.append(record)


def _free(left: Sequence[Record], holders: Sequence[Record]) -> list[Record]:
    """Those of `left` that no other record needs."""
    needed: dict[str, list[Record]] = {}
    for holder in holders:
        for urn in holder.edges:
            needed.setdefault(urn, []).append(holder)
    return [r for r in left if all(holder is r for holder in needed.get(r.urn, ()))]
