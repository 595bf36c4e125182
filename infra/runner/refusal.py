"""What is said where only the Pulumi CLI can help."""

from __future__ import annotations

HOW_TO_INSTALL = (
    "Install the Pulumi CLI (Pulumi's site has a one-line installer under 'Download & install'), "
    "put `pulumi` on PATH, and run the command again."
)
