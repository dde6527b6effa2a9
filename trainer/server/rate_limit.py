"""Clients in, how long each has to wait out: a bucket for each, which fills at a steady rate and holds a burst."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

CLIENTS = 1024
"""Buckets that are remembered at most; the one that was not asked for longest goes first."""


class RateLimit:
    """`rate` requests a second for each client, `burst` at once. Used by one thread; `clock` counts seconds and never goes back."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> float:
        """0.0 where the request may pass, and is counted; else the seconds until one may."""
        wait = self.wait(address)
        if not wait:
            client = client_of(address)
            filled, at = self._buckets[client]
            self._buckets[client] = (filled - 1, at)
        return wait

    def wait(self, address: str) -> float:
        """As `take`, without counting a request."""
        client, now = client_of(address), self._clock()
        filled, at = self._buckets.pop(client, (float(self._burst), now))
        filled = min(self._burst, filled + (now - at) * self._rate)
        self._buckets[client] = (filled, now)
        while len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if filled >= 1 else (1 - filled) / self._rate


def client_of(address: str) -> str:
    """Who an address belongs to: an IPv6 network of 64 bits is one client, and so is this machine, whichever addresses it uses."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv6Address):
        known = known.ipv4_mapped or known
    if known.is_loopback:
        return "localhost"
    return str(ipaddress.ip_network((known, 64), strict=False) if known.version == 6 else known)
