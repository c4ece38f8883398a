"""Sum up what the requests of one ack used. `lua/ack.lua` adds the sums to the ledger.

The script takes from the sums what it does not store, so it needs each request's use too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from gristmill.shared.operations import Settlement

MAX_MODEL_CHARS = 256
"""Most characters of a model's name in the ledger, as in a request. A foreign server may answer any name."""


@dataclass(slots=True)
class _Sum:
    """What the requests of one tenant and model used.

    Attributes:
        line: Number of its line, from 1.
    """

    line: int
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    device_ms: int = 0

    def text(self, tenant: str, model: str) -> str:
        """Return the line. A tenant has no `|`, so any model may follow it."""
        return (
            f"{self.requests}|{self.prompt_tokens}|{self.cached_tokens}|{self.output_tokens}|{self.device_ms}"
            f"|{tenant}|{model}"
        )


def summed_use(settlements: Sequence[Settlement]) -> tuple[str, bytes]:
    """Return the last two arguments of `lua/ack.lua`: the sums, and the use of each request."""
    sums: dict[tuple[str, str], _Sum] = {}
    uses: list[int] = []
    for each in settlements:
        if each.usage is None:
            uses += 0, 0, 0
            continue
        tenant, name, cached_tokens, device_ms = each.usage
        model = name[:MAX_MODEL_CHARS].replace("\n", " ")
        found = sums.get((tenant, model))
        if found is None:
            found = sums[tenant, model] = _Sum(len(sums) + 1)
        found.requests += 1
        found.prompt_tokens += each.prompt_tokens
        found.cached_tokens += cached_tokens
        found.output_tokens += each.output_tokens
        found.device_ms += device_ms
        uses += found.line, cached_tokens, device_ms
    lines = [found.text(*names) for names, found in sums.items()]
    return "\n".join(lines), orjson.dumps(uses)
