"""Makes slurmdbd's accounts, users and QOS those of the design, at each boot of the controller.

A change of the stack file boots the controller anew, while jobs go on. What slurmctld needs when it starts is
added before (`prepare`): it ends if a partition's QOS is unknown. The rest comes once it runs (`finish`): it
tells slurmdbd which TRES there are, and knows which jobs keep an account from going.

Slurm's traps (docs/internals/slurm_traps.md): unknown-to-slurmdbd.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from node.accounting import plan, state, stops
from node.accounting.plan import Plan, QueuedJob, Record, Wanted, Words
from node.accounting.sacctmgr import Sacctmgr
from node.accounting.state import State
from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.slurm.control import Control
from node.system import files, foreign
from node.system.codec import from_json, to_json

FILE = "slurm-stacks-sharing.json"
"""The record of what designs have added, in slurmctld's folder: backups and a new head take it along."""
MOST_BYTES = 64 << 20
FACT = "sharing"
"""The fact of the boot's report that says what was done."""
MOST_TOLD = 20


def _sacctmgr(context: Context) -> Sacctmgr:
    return Sacctmgr(lambda *words: context.slurm("sacctmgr", *words), _name(context))


def concerns(context: Context) -> bool:
    """Return whether the design says anything about accounts, users and QOS, or did so before."""
    design = context.settings.design
    named = design.accounts or design.users or design.qos or design.slurm.exclusive_accounts
    return bool(named) or context.path(context.folders.state / FILE).exists()


def prepare(context: Context) -> None:
    """Add and change what slurmdbd can have before slurmctld runs. Nothing goes.

    Raises:
        RuntimeError: slurmdbd refuses a change; the message has its words.
    """
    if not concerns(context):
        return
    sacctmgr, wanted, record = _sacctmgr(context), _wanted(context), read_record(context)
    # What is recorded and never added costs nothing; what is added and not recorded would count as people's.
    write_record(context, record.with_design(wanted))
    found = state.read(sacctmgr)
    done = plan.plan(_with_stops(context, wanted, found), found, record, None, _name(context))
    _carry_out(sacctmgr, done.changes)
    _tell(context, done.said)


def finish(context: Context) -> None:
    """Do what is left, and take away what the design has no more, unless it has jobs.

    Raises:
        RuntimeError: slurmdbd refuses a change; the message has its words.
    """
    if not concerns(context):
        return
    sacctmgr, wanted, record = _sacctmgr(context), _wanted(context), read_record(context)
    left = _planned(context, sacctmgr, wanted, record)
    if left.changes:
        _carry_out(sacctmgr, left.changes)
        _tell(context, left.said)
        left = _planned(context, sacctmgr, wanted, record)
    _carry_out(sacctmgr, [one.words for one in left.removals])
    if left.removals:
        write_record(context, record.without(left.removals))
    _tell(context, (*_removed(left), *left.staying, *_by_hand(left), *_not_taken(left)))


def _planned(context: Context, sacctmgr: Sacctmgr, wanted: Wanted, record: Record) -> Plan:
    owners = Control(context.folders.slurm_conf).owners()
    jobs = [
        QueuedJob(str(number), fields["username"], fields["account"], fields["qos"])
        for number, fields in owners.items()
    ]
    found = state.read(sacctmgr)
    return plan.plan(_with_stops(context, wanted, found), found, record, jobs, _name(context))


def _wanted(context: Context) -> Wanted:
    return plan.wanted(context.settings.design, context.settings.site.user)


def _with_stops(context: Context, wanted: Wanted, found: State) -> Wanted:
    """Return what is wanted, except that accounts which have used their budgets stay as they are."""
    folder = context.path(context.folders.state)
    try:
        before = stops.read(folder)
    except (OSError, ValueError) as error:
        print(f"which accounts have used their budgets cannot be read: {error}", file=sys.stderr, flush=True)
        return wanted
    limits = {name: values[stops.LIMIT] for name, values in found.accounts.items()}
    wanted, after = stops.stopped(wanted, before, limits)
    if after != before:
        stops.write(folder, after, context.slurm_user)
    return wanted


def _name(context: Context) -> str:
    return context.settings.design.name


def _carry_out(sacctmgr: Sacctmgr, changes: Sequence[Words]) -> None:
    for words in changes:
        try:
            sacctmgr.write(*words)
        except CommandError as error:
            raise RuntimeError(f"accounts, users and QOS are not those of the stack file: {error}") from error


def _removed(done: Plan) -> list[str]:
    return [f"removed: {plan.some([one.text() for one in done.removals])}"] if done.removals else []


def _by_hand(done: Plan) -> list[str]:
    if not done.by_hand:
        return []
    keeps = "added with sacctmgr, and stays (slurm.exclusive_accounts: true takes it away)"
    return [f"{keeps}: {plan.some(done.by_hand)}"]


def _not_taken(done: Plan) -> list[str]:
    lines = [f"Slurm has not taken: {' '.join(words)}" for words in done.changes]
    if done.later:
        lines.append(f"Slurm does not count {', '.join(done.later)}: limits of it do not hold")
    return lines


def _tell(context: Context, lines: Sequence[str]) -> None:
    for line in lines:
        print(f"accounting: {line}", file=sys.stderr, flush=True)
    if lines:
        facts = context.report.content["facts"]
        before = facts.get(FACT, "").split("; ") if FACT in facts else []
        facts[FACT] = "; ".join([*before, *lines][:MOST_TOLD])


def read_record(context: Context) -> Record:
    """Return what designs have added; nothing if there is no record that can be read.

    What is not recorded counts as people's, and stays.
    """
    try:
        data = foreign.read(context.path(context.folders.state / FILE), MOST_BYTES).data
        return from_json(Record, foreign.parse(data))
    except FileNotFoundError:
        pass
    except (OSError, foreign.UnusableError, ValueError) as error:
        print(
            f"which accounts the stack file had before cannot be read: {error}", file=sys.stderr, flush=True
        )
    return Record()


def write_record(context: Context, record: Record) -> None:
    content = json.dumps(to_json(record), sort_keys=True).encode()
    path = context.path(context.folders.state / FILE)
    files.write(path, content, 0o600, context.slurm_user, durable=True)
