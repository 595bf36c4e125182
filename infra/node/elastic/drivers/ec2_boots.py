"""Boot reports from the cluster's bucket in S3, with the driver's own client."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from infra.node.cloud.objects import Entry
from infra.node.elastic.drivers.boot_reports import BootReports


class S3:
    """A bucket of S3's; its methods raise boto3's ClientError and BotoCoreError.

    Args:
        client: the S3 client; made at the first look.
    """

    def __init__(self, client: Callable[[], Any], bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def list(self, prefix: str) -> dict[str, Entry]:
        pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        return {
            entry["Key"]: Entry(entry["LastModified"].timestamp(), entry["ETag"])
            for page in pages
            for entry in page.get("Contents", [])
        }

    def get(self, key: str) -> bytes:
        content: bytes = self._client().get_object(Bucket=self._bucket, Key=key)["Body"].read()
        return content


class Ec2Boots(BootReports):
    """Args:
    client: the S3 client; made at the first look.
    clock: seconds since the epoch.
    """

    def __init__(
        self, client: Callable[[], Any], bucket: str, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(S3(client, bucket), clock)
