"""Sum up what the requests of one ack used. `lua/ack.lua` adds the sums to the ledger.

The script takes from the sums what it does not store, so it needs each request's use too.
"""

from collections.abc import Sequence

import orjson

from gristmill.shared.operations import Settlement

MAX_MODEL_CHARS = 256
"""Most characters of a model's name in the ledger, as in a request. A foreign server may answer any name."""


def summed_use(settlements: Sequence[Settlement]) -> tuple[str, bytes]:
    """Return the last two arguments of `lua/ack.lua`: the sums, and the use of each request."""
    sums: dict[tuple[str, str], list[int]] = {}  # number of the line, then five sums
    uses: list[int] = []
    for each in settlements:
        if each.usage is None:
            uses += 0, 0, 0
            continue
        tenant, name, cached_tokens, device_ms = each.usage
        model = name[:MAX_MODEL_CHARS].replace("\n", " ")
        numbers = sums.get((tenant, model))
        if numbers is None:
            numbers = sums[tenant, model] = [len(sums) + 1, 0, 0, 0, 0, 0]
        numbers[1] += 1
        numbers[2] += each.prompt_tokens
        numbers[3] += cached_tokens
        numbers[4] += each.output_tokens
        numbers[5] += device_ms
        uses += numbers[0], cached_tokens, device_ms
    lines = [_line(tenant, model, numbers[1:]) for (tenant, model), numbers in sums.items()]
    return "\n".join(lines), orjson.dumps(uses)


def _line(tenant: str, model: str, numbers: Sequence[int]) -> str:
    """Return a line of the sums. A tenant has no `|`, so any model may follow it."""
    return "|".join((*map(str, numbers), tenant, model))
