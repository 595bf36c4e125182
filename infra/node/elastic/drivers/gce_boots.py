"""Boot reports from the cluster's bucket in Cloud Storage, as the machine's service account."""

from __future__ import annotations

from infra.node.elastic.drivers.boot_reports import BootReports, Shelf
from infra.node.gcp.metadata import Metadata
from infra.node.gcp.storage import SCHEME, Bucket


class GceBoots(BootReports):
    """Args:
    bucket: its name, or the object that reads it.
    """

    def __init__(self, bucket: str | Shelf) -> None:
        if isinstance(bucket, str):
            bucket = Bucket(SCHEME + bucket.removeprefix(SCHEME), Metadata().token)
        super().__init__(bucket)
