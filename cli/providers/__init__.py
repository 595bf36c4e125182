"""What each provider of machines can do for the commands."""
