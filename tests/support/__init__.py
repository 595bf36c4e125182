"""What tests and benchmarks of several kinds share."""
