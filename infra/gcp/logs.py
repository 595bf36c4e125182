"""Where machines send their logs: Cloud Logging, for which nothing has to be made.

Every project has a bucket of logs, which keeps entries for thirty days. One of the cluster's own would keep
them no longer, its deletion takes a week in which its name is taken, and it needs a sink that all entries of
the project pass through. So the cluster's entries are found by the names of their machines, and end with the
thirty days, not with the cluster.

A budget of Google's is left out as well: it belongs to a billing account, which is seldom the engineer's. The
one that stops launches is the elastic daemon's own.
"""

from __future__ import annotations

from collections.abc import Mapping

SITE: Mapping[str, str] = {"logs": "true"}
"""What goes into `Site.driver`: machines install Google's agent and send their logs by it."""
