"""The tests' own certificate authority for the names of a cloud's services, which machines call by TLS."""

from __future__ import annotations

import datetime
import functools
import ipaddress
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SYSTEM = Path("etc/ssl/certs")
BUNDLE = "ca-certificates.crt"


class Authority:
    """A certificate authority.

    Args:
        folder: keeps the certificate and its key.
        names: the services' names; `*.example.org` is possible, too.
        addresses: their addresses, for services without a name.
    """

    def __init__(self, folder: Path, names: Sequence[str], addresses: Sequence[str] = ()) -> None:
        key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "slurm-stacks tests")])
        root = (
            _draft(own, own, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        known: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        known += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        server = (
            _draft(x509.Name([]), own, server_key.public_key())
            .add_extension(x509.SubjectAlternativeName(known), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        self.pem = root.public_bytes(pem).decode()
        self._root = folder / "authority.pem"
        self._root.write_text(self.pem)
        self._server = folder / "server.pem"
        secret = server_key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._server.write_bytes(secret + server.public_bytes(pem))

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of the services' server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._server)
        return context

    def files(self, image: Path) -> dict[str, str]:
        """Return the files that make a machine trust this authority: path on the machine -> content."""
        return {
            str(SYSTEM / f"{_digest(self._root)}.0"): self.pem,
            str(SYSTEM / BUNDLE): (image / SYSTEM / BUNDLE).read_text() + self.pem,
        }


def _draft(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
        now + datetime.timedelta(days=2)
    )


@functools.cache
def _digest(file: Path) -> str:
    """Return the file name under which OpenSSL looks up a certificate in a folder."""
    done = subprocess.run(
        ["openssl", "x509", "-noout", "-subject_hash", "-in", str(file)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()
