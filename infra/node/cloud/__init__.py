"""What asking any cloud over HTTP takes: a call with patience, and the errors that it may come to."""
