"""Fetches `loader.py` from the cluster's bucket with the machine's service account, and runs it.

This is the first code on a machine of Google Cloud. It is in the metadata, so it is one small file, needs
only the standard library, and never changes. What may change belongs in the loader or in what it fetches.
"""

import argparse
import json
import os
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

METADATA = os.environ.get("GCE_METADATA_HOST", "169.254.169.254")
STORAGE = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
CODE = Path(__file__).resolve().parent
TRIES = 30
PAUSE = 10.0


def answer(url: str, headers: dict[str, str]) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as response:
        content: bytes = response.read()
        return content


def fetch(bucket: str, key: str) -> bytes:
    """Return an object's content, read with the token of the machine's service account."""
    account = f"http://{METADATA}/computeMetadata/v1/instance/service-accounts/default/token"
    token = json.loads(answer(account, {"Metadata-Flavor": "Google"}))["access_token"]
    name = urllib.parse.quote(key, safe="")
    url = f"{STORAGE.rstrip('/')}/storage/v1/b/{bucket}/o/{name}?alt=media"
    return answer(url, {"Authorization": f"Bearer {token}"})


def fetch_loader(loader: Path, bucket: str) -> None:
    """Fetch the loader. If the bucket does not answer, the loader of the last boot stays in use."""
    for left in reversed(range(TRIES)):
        try:
            draft = loader.with_suffix(".new")
            draft.write_bytes(fetch(bucket, loader.name))
            draft.replace(loader)
            return
        except (OSError, ValueError, KeyError) as error:
            # A new permission takes a while to work everywhere.
            print(f"{loader.name} cannot be fetched: {error!r}", file=sys.stderr, flush=True)
            if loader.exists():
                return
            if not left:
                raise
            time.sleep(PAUSE)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bucket", "region", "cluster", "role"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--host")
    options = parser.parse_args()
    loader = CODE / "loader.py"
    fetch_loader(loader, options.bucket)
    line = [sys.executable, str(loader), "--bucket", f"gs://{options.bucket}", "--code", str(CODE)]
    line += ["--role", options.role, *(["--host", options.host] if options.host else [])]
    # A machine that becomes an image is switched off at the end.
    line += ["--power-off"] if options.role == "image" else []
    os.execv(line[0], line)


if __name__ == "__main__":
    main()
