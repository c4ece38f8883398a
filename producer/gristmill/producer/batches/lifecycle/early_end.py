"""End a batch early: before its execution, or because its input is gone."""

import time
from dataclasses import replace

from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.batches.objects import BatchErrors


async def end_without_rows(
    leased: LeasedBatch, errors: BatchErrors | None = None, warnings: BatchErrors | None = None
) -> None:
    """End a batch before its execution: failed if there are errors, else cancelled."""
    status = "failed" if errors else "cancelled"
    update = {
        "status": status,
        f"{status}_at": int(time.time()),
        "errors": errors,
        "warnings": warnings,
    }
    # Validation may have written parts that no commit knows; `delete_parts` removes them.
    checkpoint = replace(leased.state.checkpoint, has_parts=True)
    await leased.commit(leased.record.model_copy(update=update), checkpoint)


async def fail_with_rows(leased: LeasedBatch, errors: BatchErrors) -> None:
    """Fail a batch during its execution; its committed rows go into its files."""
    update = {
        "status": "finalizing", "finalizing_at": int(time.time()), "closing": "failed", "errors": errors,
    }  # fmt: skip
    await leased.commit(leased.record.model_copy(update=update), leased.state.checkpoint)
