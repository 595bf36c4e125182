"""The bill: who has used which machines, and what that cost."""

BY = ("user", "account", "partition", "job")
"""What a bill's rows may be."""
