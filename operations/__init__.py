"""What Pulumi's resources run on the engineer's machine, and what the commands share with it."""
