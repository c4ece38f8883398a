"""Test what a worker claims after losses of its lease."""

from gristmill.worker.lease_losses import MAX_DOUBLINGS, MAX_LOSSES, STEADY_LEASES, LeaseLosses
from gristmill.worker.liveness import Liveness

LEASE_S = 10.0


class Worker:
    """A worker with one lease that can be lost."""

    def __init__(self) -> None:
        self.liveness = Liveness(60, 60, 60)
        self.liveness.note_waiting(None)
        self.losses = LeaseLosses("q", LEASE_S, self.liveness)

    def lose(self, *moments_s: float) -> None:
        for now_s in moments_s:
            self.losses.note(now_s)

    def claims(self, now_s: float) -> tuple[bool, bool]:
        """Return whether it claims anything, and whether it claims suspects."""
        return self.losses.may_claim(now_s), self.losses.suspect_width(4, now_s) == 4


def test_worker_that_keeps_its_lease_claims_everything() -> None:
    assert Worker().claims(0) == (True, True)


def test_no_suspects_for_one_lease_after_a_loss() -> None:
    worker = Worker()
    worker.lose(100)
    assert worker.claims(109.9) == (True, False)
    assert worker.claims(110) == (True, True)
    assert worker.liveness.unready_reason() is None


def test_each_loss_in_a_row_doubles_the_pause_up_to_a_bound() -> None:
    worker = Worker()
    worker.lose(100, 115)
    assert worker.claims(134.9) == (True, False)
    assert worker.claims(135) == (True, True)
    worker.lose(*range(140, 340, 10))
    assert worker.losses.pause_s == LEASE_S * 2**MAX_DOUBLINGS


def test_after_several_losses_it_claims_nothing_and_says_why() -> None:
    worker = Worker()
    worker.lose(*range(100, 100 + MAX_LOSSES))
    last_s = 99 + MAX_LOSSES
    assert worker.claims(last_s + 39.9) == (False, False)
    assert worker.liveness.unready_reason() == (
        "braked: lost its lease 3 times in a row: its process or its clock stopped for longer than a"
        " lease; it claims nothing for 40 s"
    )
    assert worker.claims(last_s + 40) == (True, True)
    assert worker.liveness.unready_reason() is None


def test_steady_lease_makes_the_next_loss_the_first_again() -> None:
    worker = Worker()
    worker.lose(*range(100, 100 + MAX_LOSSES))
    steady_s = 102 + worker.losses.pause_s + STEADY_LEASES * LEASE_S
    worker.lose(steady_s)
    assert worker.losses.number == MAX_LOSSES + 1
    worker.lose(steady_s + worker.losses.pause_s + STEADY_LEASES * LEASE_S + 1)
    assert worker.losses.number == 1
