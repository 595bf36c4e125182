"""For all tests."""

from __future__ import annotations

import signal

# Whoever is started in the background of a script ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
