"""The parts that all clouds' HTTP APIs share: a call with retries, and its errors."""
