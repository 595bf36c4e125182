"""Fetches `loader.py` from the cluster's bucket with the machine's role, and runs it.

This is the first code on a machine of AWS. It is in the user data, so it is one small file, needs only the
standard library, and never changes. What may change belongs in the loader or in what it fetches.
"""

import argparse
import datetime
import hashlib
import hmac
import json
import os
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254")
CODE = Path(__file__).resolve().parent
TRIES = 30
PAUSE = 10.0


def answer(ask: urllib.request.Request) -> bytes:
    with urllib.request.urlopen(ask, timeout=60) as response:
        content: bytes = response.read()
        return content


def metadata(path: str) -> str:
    """Return the text at a path of the metadata service, whose version 2 requires a token."""
    url = METADATA.rstrip("/") + "/latest/"
    life = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    token = answer(urllib.request.Request(url + "api/token", method="PUT", headers=life)).decode()
    ask = urllib.request.Request(url + path, headers={"X-aws-ec2-metadata-token": token})
    return answer(ask).decode()


def signed(
    bucket: str, region: str, key: str, role: dict[str, str], now: datetime.datetime
) -> urllib.request.Request:
    """Return a request for an object, signed with AWS's Signature Version 4."""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    url = f"https://{bucket}.s3.{region}.{domain}/{key}"
    if other := os.environ.get("AWS_ENDPOINT_URL_S3"):
        url = f"{other.rstrip('/')}/{bucket}/{key}"
    place = urllib.parse.urlsplit(url)
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    empty = hashlib.sha256(b"").hexdigest()
    headers = {
        "host": place.netloc,
        "x-amz-content-sha256": empty,
        "x-amz-date": stamp,
        "x-amz-security-token": role["Token"],
    }
    names = ";".join(headers)
    lines = [f"{name}:{value}" for name, value in headers.items()]
    request = "\n".join(["GET", place.path, "", *lines, "", names, empty])
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    secret = ("AWS4" + role["SecretAccessKey"]).encode()
    for part in [*scope.split("/"), f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"]:
        secret = hmac.digest(secret, part.encode(), "sha256")
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={role['AccessKeyId']}/{scope},"
        f"SignedHeaders={names},Signature={secret.hex()}"
    )
    return urllib.request.Request(url, headers=headers)


def fetch(bucket: str, region: str, key: str) -> bytes:
    path = "meta-data/iam/security-credentials/"
    role = json.loads(metadata(path + metadata(path).strip()))
    return answer(signed(bucket, region, key, role, datetime.datetime.now(datetime.UTC)))


def fetch_loader(loader: Path, bucket: str, region: str) -> None:
    """Fetch the loader. If the bucket does not answer, the loader of the last boot stays in use."""
    for left in reversed(range(TRIES)):
        try:
            draft = loader.with_suffix(".new")
            draft.write_bytes(fetch(bucket, region, loader.name))
            draft.replace(loader)
            return
        except (OSError, ValueError, KeyError) as error:
            # A new role takes a while to work everywhere.
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
    fetch_loader(loader, options.bucket, options.region)
    line = [sys.executable, str(loader), "--bucket", f"s3://{options.bucket}", "--code", str(CODE)]
    line += ["--role", options.role, *(["--host", options.host] if options.host else [])]
    os.environ["AWS_REGION"] = options.region
    os.execv(line[0], line)


if __name__ == "__main__":
    main()
