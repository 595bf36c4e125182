"""What the user sees: progress and tables on a terminal, plain lines elsewhere."""
