"""Paging: values that wait in the memory of the host, beside the computations.

- `host.py`: graphs with nodes that copy values to the host;
- `timeline.py`: when the computations and copies of a plan happen.

POET (Patil et al., ICML 2022) decides paging together with rematerialization, too. It adds up what both cost.
"""

from .host import with_host, without_host
from .timeline import Timeline, timeline

__all__ = ["Timeline", "timeline", "with_host", "without_host"]
