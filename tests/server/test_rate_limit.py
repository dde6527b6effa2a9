"""trainer/server/rate_limit.py: a burst, then a steady rate, for each client apart, in bounded memory."""

import pytest

from tests.support.threads import FakeClock
from trainer.server import rate_limit
from trainer.server.rate_limit import RateLimit, client_of


def test_a_burst_passes_then_a_steady_rate() -> None:
    clock = FakeClock()
    limit = RateLimit(2.0, 3, clock)
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.now += 0.25
    assert limit.take("a") == pytest.approx(0.25)
    clock.now += 0.25
    assert limit.take("a") == 0
    assert limit.take("a") == pytest.approx(0.5)
    clock.now += 1000
    assert [limit.take("a") > 0 for _ in range(4)] == [False, False, False, True], "no more than the burst is saved up"


def test_looking_takes_nothing_and_a_refusal_costs_nothing() -> None:
    limit = RateLimit(1.0, 1, FakeClock())
    assert [limit.wait("a") for _ in range(5)] == [0] * 5
    assert limit.take("a") == 0
    assert [limit.take("a") for _ in range(5)] == [1] * 5


def test_clients_do_not_share() -> None:
    limit = RateLimit(1.0, 1, FakeClock())
    assert (limit.take("10.0.0.1"), limit.take("10.0.0.2"), limit.take("10.0.0.1")) == (0, 0, 1)


def test_memory_is_bounded_and_the_busy_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "CLIENTS", 10)
    limit = RateLimit(1.0, 1, FakeClock())
    limit.take("busy")
    for number in range(100):
        limit.take(f"10.0.0.{number}")
        assert limit.take("busy") > 0
    assert len(limit._buckets) == 10


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        *((address, "localhost") for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.2")),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_who_an_address_belongs_to(address: str, client: str) -> None:
    assert client_of(address) == client
