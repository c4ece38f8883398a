"""Estimate a request's tokens before it runs, from its header and from the requests that ended.

The header has prompt_tokens (bytes divided by four) and max_tokens (a limit, which few answers
reach). The counts of ended requests correct both.
"""

from dataclasses import dataclass

MIN_WEIGHT = 1 / 64
"""Weight of the newest request in the moving average, once many have ended."""

NUM_BELIEVED = 8
"""Weight of the header's estimate at first, in requests. The shortest requests end first, so the
first few must not outweigh the estimate."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one request or of several, estimated or counted.

    Attributes:
        prompt: Prompt tokens.
        output: Output tokens.
    """

    prompt: float = 0
    output: float = 0

    @property
    def total(self) -> float:
        """Prompt and output tokens."""
        return self.prompt + self.output

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prompt + other.prompt, self.output + other.output)

    def __sub__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prompt - other.prompt, self.output - other.output)

    def clipped(self, limit: int) -> "Tokens":
        """Return a copy with at most `limit` prompt tokens and at most `limit` output tokens."""
        return Tokens(min(self.prompt, limit), min(self.output, limit))


@dataclass(frozen=True, slots=True)
class SeenTokens:
    """Moving averages over the ended requests: tokens by their headers, and tokens that they took.

    Attributes:
        estimated: Tokens of a request by the headers; None before the first has ended.
        counted: Tokens of a request by the engine's count.
        number: Requests that have ended.
    """

    estimated: Tokens | None = None
    counted: Tokens = Tokens()
    number: int = 0

    @property
    def shares(self) -> Tokens:
        """Counted tokens divided by estimated ones, for prompts and for outputs."""
        if self.estimated is None:
            return Tokens(1, 1)
        return Tokens(
            _share(self.counted.prompt, self.estimated.prompt),
            _share(self.counted.output, self.estimated.output),
        )

    def corrected(self, estimated: Tokens) -> Tokens:
        """Return the expected tokens: the estimates times the `shares` of earlier requests."""
        shares = self.shares
        return Tokens(estimated.prompt * shares.prompt, estimated.output * shares.output)

    def uncorrected(self, num_tokens: float) -> float:
        """Return the headers' estimate for requests that will take `num_tokens` tokens."""
        if self.estimated is None:
            return num_tokens
        share = _share(self.counted.total, self.estimated.total)
        return num_tokens / share if share else num_tokens

    def after(self, estimated: Tokens, counted: Tokens) -> "SeenTokens":
        """Return a copy, updated with one more ended request.

        The averages begin as if the first request had used up its estimate. So a worker begins with
        the headers' estimates and moves away from them one request at a time.
        """
        if self.estimated is None:
            return SeenTokens(estimated, estimated).after(estimated, counted)
        weight = max(MIN_WEIGHT, 1 / (NUM_BELIEVED + self.number + 1))
        return SeenTokens(
            _moved(self.estimated, estimated, weight),
            _moved(self.counted, counted, weight),
            self.number + 1,
        )


def _share(counted: float, estimated: float) -> float:
    return counted / estimated if estimated > 0 else 1.0


def _moved(mean: Tokens, newest: Tokens, weight: float) -> Tokens:
    return Tokens(
        mean.prompt + (newest.prompt - mean.prompt) * weight,
        mean.output + (newest.output - mean.output) * weight,
    )
