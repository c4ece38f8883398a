"""Test when a full worker claims for the lane `high` alone, without a clock."""

from gristmill.worker.admission.urgent import CLAIM_S, MAX_URGENT_S, URGENT_S, UrgentClaims


def test_a_look_is_due_some_time_after_the_last_look_or_claim_of_its_queue() -> None:
    claims = UrgentClaims()
    assert claims.is_due("a", 0.0)
    claims.note_all_lanes("a", 0.0)
    assert not claims.is_due("a", 0.9 * URGENT_S)
    assert claims.is_due("b", 0.9 * URGENT_S)
    claims.note_look("a", URGENT_S)
    assert not claims.is_due("a", 1.9 * URGENT_S)
    claims.note_urgent("a", 2 * URGENT_S, 4, 3)
    assert not claims.is_due("a", 2.9 * URGENT_S)
    assert claims.is_due("a", 3 * URGENT_S)


def test_a_claim_that_took_its_full_size_makes_the_next_look_due_at_once() -> None:
    claims = UrgentClaims()
    claims.note_urgent("a", 5.0, 4, 4)
    assert claims.is_due("a", 5.0)


def test_looks_do_not_put_off_the_next_claim() -> None:
    claims = UrgentClaims()
    assert claims.must_claim("a", 0.0)
    claims.note_all_lanes("a", 0.0)
    claims.note_look("a", 0.9 * CLAIM_S)
    assert not claims.must_claim("a", 0.9 * CLAIM_S)
    assert claims.must_claim("a", CLAIM_S)
    claims.note_urgent("a", CLAIM_S, 4, 4)
    assert not claims.must_claim("a", 1.9 * CLAIM_S)


def test_a_flood_leaves_the_places_held_back_to_the_next_claim_of_all_lanes() -> None:
    claims = UrgentClaims()
    claims.note_urgent("a", 0.0, 4, 0)
    assert not claims.may_take_only_kept(MAX_URGENT_S)  # it took nothing
    claims.note_urgent("a", 5.0, 4, 1)
    claims.note_urgent("b", 5.5, 4, 4)
    assert not claims.may_take_only_kept(4.9 + MAX_URGENT_S)
    assert claims.may_take_only_kept(5.0 + MAX_URGENT_S)
    claims.note_all_lanes("b", 5.0 + MAX_URGENT_S)
    assert not claims.may_take_only_kept(9.0 + MAX_URGENT_S)
