"""The directory of users (LDAP or Active Directory) that machines ask by SSSD."""

from __future__ import annotations

from dataclasses import dataclass

CA_ARCHIVED = "directory/ca.pem"
"""The path of the certificate in the node archive."""
SECRET = "directory-password"
"""The name of the password in the local stack's secret store."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of users.

    Attributes:
        domain: SSSD's name for it.
        uris: The servers, tried in this order; all are ldaps://.
        ldap_schema: rfc2307 | rfc2307bis | ad. With ad SSSD computes users' numbers from their SIDs, equally
            on all machines; else they are the directory's uidNumber.
        bind_dn: As whom machines ask; `None` means anonymously.
        password_secret: Where the password of `bind_dn` is, never the password: the secret's ARN (AWS), its
            name (Google Cloud), a file of the engineer's machine (local).
        access_filter: An LDAP filter for who may log in; `None` means everybody.
        ca_certificate: A path in the project; `None` means the machines' own authorities.
    """

    domain: str
    uris: tuple[str, ...]
    search_base: str
    ldap_schema: str = "rfc2307"
    bind_dn: str | None = None
    password_secret: str | None = None
    access_filter: str | None = None
    ca_certificate: str | None = None

    def __str__(self) -> str:
        return f"{self.domain} ({self.ldap_schema}, {', '.join(self.uris)})"
