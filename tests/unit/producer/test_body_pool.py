"""Shares of the memory for bodies: of a tenant, of an address, of small bodies."""

import pytest

from gristmill.producer.gateway.body_pool import (
    SMALL_BODY_BYTES,
    SMALL_POOL_BYTES,
    BodyPools,
    Caller,
)
from gristmill.producer.gateway.http_errors import ApiError

LARGEST = 64 * 2**20
ACME, BETA, GAMA = Caller("acme", "10.0.0.1"), Caller("beta", "10.0.0.2"), Caller("gama", "10.0.0.3")  # fmt: skip


@pytest.fixture
def pools() -> BodyPools:
    return BodyPools(LARGEST)


def refusal(pools: BodyPools, caller: Caller, num_bytes: int) -> tuple[int, str | None] | None:
    """Return status and code of a refused body, None if there is room for it."""
    try:
        with pools.share(caller) as share:
            share.resize(num_bytes)
    except ApiError as error:
        return error.status, error.code
    return None


def test_an_address_may_hold_a_quarter_and_its_tenant_half(pools: BodyPools) -> None:
    elsewhere = ACME._replace(address="10.0.0.9")
    with pools.share(ACME) as first, pools.share(elsewhere) as second:
        first.resize(LARGEST)
        assert refusal(pools, ACME, SMALL_BODY_BYTES + 1) == (429, "limit_reached")
        second.resize(LARGEST)
        third = ACME._replace(address="10.0.0.10")
        assert refusal(pools, third, SMALL_BODY_BYTES + 1) == (429, "limit_reached")
        assert refusal(pools, BETA, LARGEST) is None
    assert refusal(pools, ACME, LARGEST) is None


def test_a_full_pool_is_the_gateways_and_small_bodies_pass_it(pools: BodyPools) -> None:
    shares = [
        pools.share(caller._replace(address=address))
        for caller in (ACME, BETA)
        for address in ("a", "b")
    ]
    for share in shares:
        share.__enter__().resize(LARGEST)
    assert refusal(pools, GAMA, SMALL_BODY_BYTES + 1) == (503, "gateway_busy")
    assert refusal(pools, GAMA, SMALL_BODY_BYTES) is None
    assert refusal(pools, ACME, SMALL_BODY_BYTES) is None
    for share in shares:
        share.__exit__(None, None, None)
    assert refusal(pools, GAMA, LARGEST) is None


def test_a_body_of_unknown_length_moves_to_the_large_pool(pools: BodyPools) -> None:
    with pools.share(ACME) as share:
        share.resize(SMALL_BODY_BYTES)
        with pools.share(ACME) as other:
            other.resize(SMALL_POOL_BYTES // 4 - SMALL_BODY_BYTES - 1)  # counts as large
        share.resize(SMALL_BODY_BYTES + 1)
        assert refusal(pools, ACME, LARGEST - SMALL_BODY_BYTES) == (429, "limit_reached")
    assert refusal(pools, ACME, LARGEST) is None


def test_a_refused_body_holds_nothing_and_is_told_the_numbers(pools: BodyPools) -> None:
    with pools.share(ACME) as share, pytest.raises(ApiError) as refused:
        share.resize(LARGEST + 1)
    assert refused.value.headers["Retry-After"] == "5"
    assert refused.value.message == (
        "the calls of acme from 10.0.0.1 are sending 0 bytes of bodies and this call needs 67,108,865 more; the limit"
        " is 67,108,864 at a time; call again when some have arrived"
    )
    assert refusal(pools, ACME, LARGEST) is None
