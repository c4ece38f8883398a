"""The type of each kind of key of a queue.

Redis fails a command on a key of a wrong type, and undoes nothing that a script did before. So each script first moves
such keys away (`lua/includes/types.lua`). The audit also finds those that no script has used yet.
"""

from collections.abc import Mapping

_KINDS_OF_TYPE = {
    "string": "format request result last_claim view file batch_lease idempotency",
    "list": "inbox inbox_suspects pending batches_done finished doorbell abort batch_parts steward_doorbell",
    "set": "parked parked_claimable wrong_types batches_open",
    "zset": "pending_sjf pending_deadline pending_prefix parked_for flows debt workers producers delayed deadlines dead_letters"
    " files files_expiring batches batches_due steward_time live",
    "stream": "events",
    "hash": "scheduling pauses virtual_time tenant_weights tenant_output_shares prefix_groups admitting attempts owner"
    " worker in_flight dead_letter_info batch times stats pace tenant_load batch_record storage usage",
}

TYPES: Mapping[str, str] = {
    kind: name for name, kinds in _KINDS_OF_TYPE.items() for kind in kinds.split()
}
"""First word of a key -> the type that Redis must say of it; `parked_for` stands for `parked:<reason>`."""


def type_of(kind: str, name: str) -> str | None:
    """Return the type that a key must have; None if this version does not know its first word.

    Args:
        kind: First word of the key, as `Keys.parse` returns it.
        name: The rest of the key.
    """
    return TYPES.get("parked_for" if kind == "parked" and name else kind)
