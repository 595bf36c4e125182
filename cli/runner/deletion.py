"""Deletion of many resources: dependents first, independent ones at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from cli.runner.lifecycle import Lifecycle
from cli.runner.state import Record

WORKERS = 16
SIGNAL_SECONDS = 1.0
"""Longest wait, in seconds: Ctrl-C may not interrupt a wait that begins just after it."""


def protected(records: Sequence[Record]) -> list[str]:
    """Return the names of the protected resources."""
    return [record.name for record in records if record.protect]


def delete_all(life: Lifecycle, records: Sequence[Record]) -> None:
    """Delete the records in the reverse order of their dependencies.

    A resource is deleted when no resource that needs it is left. If a deletion fails, the resources that the
    failed one needs are kept, and the others are deleted. The failures are in `life.failures`.
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
                    replaced = any(record is replaced_one for replaced_one in life.state.to_delete)
                    running[pool.submit(life.delete, record, gone=gone, replaced=replaced)] = record
            if not running:
                return
            # If a signal did not end this wait, its handler runs before the next one.
            done, _ = wait(running, SIGNAL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                record = running.pop(future)
                if not future.result():
                    failed.append(record)


def _free(left: Sequence[Record], holders: Sequence[Record]) -> list[Record]:
    """Return the records of `left` that no other record needs."""
    needed: dict[str, list[Record]] = {}
    for holder in holders:
        for urn in holder.edges:
            needed.setdefault(urn, []).append(holder)
    return [r for r in left if all(holder is r for holder in needed.get(r.urn, ()))]
