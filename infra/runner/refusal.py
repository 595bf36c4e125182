"""What is said where only the Pulumi CLI can help."""

from __future__ import annotations

from infra import pages

HOW_TO_INSTALL = f"Install the Pulumi CLI ({pages.PULUMI}), put `pulumi` on PATH, and run the command again."
