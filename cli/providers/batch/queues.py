"""The queues that `down` closes: a tag is the mark of who does, and `up` opens them after an interruption.

For the engine a queue that somebody has disabled is as it was, so no job would start after an `up`. A queue
without the mark was disabled by people, and stays so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from cli.changes import closing
from cli.changes.closing import Found, Holder
from infra.aws.tags import CLUSTER
from node.slurm.closing import Closed, Mark
from operations.aws.account import explained
from operations.aws.batch.settling import GONE

MARK = "slurm-stacks:closed-by"
"""The tag: command, checkout, time, user and machine, process, with spaces between them."""


def of_cluster(batch: Any, cluster: str) -> list[dict[str, Any]]:
    """Return a cluster's queues as Batch describes them."""
    with explained():
        pages = batch.get_paginator("describe_job_queues").paginate()
        all_queues = [queue for page in pages for queue in page["jobQueues"]]
    return [
        q for q in all_queues if q.get("tags", {}).get(CLUSTER) == cluster and q.get("status") not in GONE
    ]


def mark(batch: Any, cluster: str, own: Holder) -> None:
    """Mark the queues that are open, before they are closed."""
    who = own.who.replace(" ", "-")
    value = f"{own.command} {own.checkout} {time.time():.0f} {who} {own.process}".strip()
    for queue in of_cluster(batch, cluster):
        if queue.get("state") == "ENABLED" or MARK in queue["tags"]:
            with explained():
                batch.tag_resource(resourceArn=queue["jobQueueArn"], tags={MARK: value})


def _marked(batch: Any, cluster: str) -> Iterator[tuple[dict[str, Any], Found]]:
    for queue in of_cluster(batch, cluster):
        command, checkout, at, who, *process = (*str(queue["tags"].get(MARK, "")).split(" "), "", "", "", "")
        if at.isdigit():
            closed = (Closed(str(queue["jobQueueName"]), "DISABLED", "ENABLED"),)
            text = " ".join(process).strip()
            yield (
                queue,
                Found(Mark(command, who, text, checkout, "", float(at), closed), time.time() - int(at)),
            )


def refuse_if_working(client: Callable[[str], Any], cluster: str, own: Holder, stack: str) -> None:
    """Refuse to touch queues that another command is closing.

    Raises:
        UserError: Exit 3; the message names who works there, and since when.
    """
    for _, there in _marked(client("batch"), cluster):
        closing.refuse_if_working(there, own, stack)


def open_interrupted(batch: Any, cluster: str, say: Callable[[str], None]) -> None:
    """Open the queues that an interrupted command has closed, and say so."""
    for queue, there in _marked(batch, cluster):
        with explained():
            if queue.get("state") == "DISABLED":
                batch.update_job_queue(jobQueue=queue["jobQueueArn"], state="ENABLED")
                say(f"{closing.interrupted(there.mark)}; jobs start there again")
            batch.untag_resource(resourceArn=queue["jobQueueArn"], tagKeys=[MARK])
