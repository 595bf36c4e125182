"""The elastic driver of Google Compute Engine."""
