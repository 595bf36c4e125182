"""The elastic driver of Amazon EC2."""
