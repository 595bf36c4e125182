"""A cluster's leftovers outside of EC2 that still cost money; each service is asked itself.

The Resource Groups Tagging API would answer for all services in one call, but it lists deleted resources for
hours. Nobody would read a report with such false alarms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from infra.aws.tags import CLUSTER, log_group, store
from operations.aws.account import DENIED, explained
from operations.aws.kept import Client, is_kept


def leftovers(client: Client, cluster: str, say: Callable[[str], None]) -> list[str]:
    """One line for each file system, bucket, secret and log group of a cluster.

    Args:
        say: Is called with what the user may not list. That is no failure: a user who may not list Lustre
            file systems has normally made none.

    Raises:
        UserError: AWS refuses for another reason, or does not answer.
    """
    from botocore.exceptions import ClientError

    remains: list[str] = []
    denied: list[str] = []
    for what, look in KINDS.items():
        with explained():
            try:
                remains += look(client, cluster)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") not in DENIED:
                    raise
                denied.append(f"{what} ({error.operation_name})")
    if denied:
        say(f"not looked for, because your user or role on AWS may not: {', '.join(denied)}")
    return remains


def _lustre_left(client: Client, cluster: str) -> Iterator[str]:
    pages = client("fsx").get_paginator("describe_file_systems").paginate()
    for system in (system for page in pages for system in page["FileSystems"]):
        if _belongs_to(system.get("Tags", []), cluster):
            yield f"Lustre file system {system['FileSystemId']} ({system['StorageCapacity']} GiB)"


def _efs_left(client: Client, cluster: str) -> Iterator[str]:
    pages = client("efs").get_paginator("describe_file_systems").paginate()
    for system in (system for page in pages for system in page["FileSystems"]):
        if _belongs_to(system.get("Tags", []), cluster):
            yield f"EFS file system {system['FileSystemId']} ({system['LifeCycleState']})"


def _buckets(client: Client, cluster: str) -> Iterator[str]:
    yield from (f"bucket {name}" for name in buckets(client, cluster))


def buckets(client: Client, cluster: str) -> Iterator[str]:
    """Yield the names of a cluster's buckets.

    A bucket counts if its name begins with the cluster's prefix, to which Pulumi adds a suffix, and if it has
    the cluster's tag: another cluster's name may begin with the same characters.
    """
    from botocore.exceptions import ClientError

    s3 = client("s3")
    prefix = store(cluster)
    for bucket in s3.list_buckets().get("Buckets", []):
        if bucket["Name"].startswith(prefix):
            try:
                tags = s3.get_bucket_tagging(Bucket=bucket["Name"])["TagSet"]
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") not in ("NoSuchTagSet", "NoSuchBucket"):
                    raise
                continue
            if _belongs_to(tags, cluster):
                yield str(bucket["Name"])


def _secrets(client: Client, cluster: str) -> Iterator[str]:
    wanted = [{"Key": "tag-key", "Values": [CLUSTER]}, {"Key": "tag-value", "Values": [cluster]}]
    pages = client("secretsmanager").get_paginator("list_secrets").paginate(Filters=wanted)
    for secret in (secret for page in pages for secret in page["SecretList"]):
        # The filter compares prefixes only.
        if _belongs_to(secret.get("Tags", []), cluster):
            yield f"secret {secret['Name']}"


def _logs(client: Client, cluster: str) -> Iterator[str]:
    name = log_group(cluster)
    pages = client("logs").get_paginator("describe_log_groups").paginate(logGroupNamePrefix=name)
    if any(group["logGroupName"] == name for page in pages for group in page["logGroups"]):
        yield f"log group {name}"


def _belongs_to(tags: Sequence[Mapping[str, str]], cluster: str) -> bool:
    if is_kept(tags):
        return False
    return any(tag.get("Key") == CLUSTER and tag.get("Value") == cluster for tag in tags)


KINDS: Mapping[str, Callable[[Client, str], Iterator[str]]] = {
    "Lustre file systems": _lustre_left,
    "EFS file systems": _efs_left,
    "buckets": _buckets,
    "secrets": _secrets,
    "log groups": _logs,
}
