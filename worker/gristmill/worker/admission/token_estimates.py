"""How many tokens a request will take, before it runs: its header's estimate, corrected by what was seen.

A header says prompt_tokens (bytes over four) and max_tokens (a limit, which few answers reach).
"""

from dataclasses import dataclass

MIN_WEIGHT = 1 / 64
"""Of the newest request, once many were seen."""

NUM_BELIEVED = 8
"""Requests for which the header's word counts at first. The shortest of a generation end first: what is
seen must not count for more than they are."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one request or of several, estimated or counted.

    Attributes:
        prompt: Of the prompts.
        output: Of the outputs.
    """

    prompt: float = 0
    output: float = 0

    @property
    def total(self) -> float:
        """Prompt and output."""
        return self.prompt + self.output

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prompt + other.prompt, self.output + other.output)

    def __sub__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prompt - other.prompt, self.output - other.output)

    def clipped(self, limit: int) -> "Tokens":
        """Return at most `limit` of each: whatever a header says, more than the cache was never run."""
        return Tokens(min(self.prompt, limit), min(self.output, limit))


@dataclass(frozen=True, slots=True)
class SeenTokens:
    """What headers said of the requests that ended, and what those really took; moving averages.

    Attributes:
        estimated: A request, by the headers; None before the first has ended.
        counted: A request, by the engine.
        number: Requests that were seen.
    """

    estimated: Tokens | None = None
    counted: Tokens = Tokens()
    number: int = 0

    @property
    def shares(self) -> Tokens:
        """Counted over estimated, of prompts and of outputs."""
        if self.estimated is None:
            return Tokens(1, 1)
        return Tokens(
            _share(self.counted.prompt, self.estimated.prompt),
            _share(self.counted.output, self.estimated.output),
        )

    def corrected(self, estimated: Tokens) -> Tokens:
        """Return what requests will take, by the shares that earlier ones took of their estimates."""
        shares = self.shares
        return Tokens(estimated.prompt * shares.prompt, estimated.output * shares.output)

    def uncorrected(self, num_tokens: float) -> float:
        """Return the headers' estimate of requests that will take so many tokens."""
        if self.estimated is None:
            return num_tokens
        share = _share(self.counted.total, self.estimated.total)
        return num_tokens / share if share else num_tokens

    def after(self, estimated: Tokens, counted: Tokens) -> "SeenTokens":
        """Return this with one more request.

        The first sets the scale only, as if it had used its estimate up; so a worker begins with the
        headers' word and leaves it one request at a time.
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
