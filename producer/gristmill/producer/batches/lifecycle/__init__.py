"""The steps of a steward: what moves a batch from its creation to its output files."""

from gristmill.producer.batches.lifecycle.execution import MayGoOn
from gristmill.producer.batches.lifecycle.leased_batch import LEASE_S, LeasedBatch
from gristmill.producer.batches.lifecycle.phases import advance, with_lease

__all__ = ["LEASE_S", "LeasedBatch", "MayGoOn", "advance", "with_lease"]
