"""The bill: who has used which machines, and what that cost."""

BY = ("user", "account", "partition", "pool", "job")
"""What a bill's rows may be."""
