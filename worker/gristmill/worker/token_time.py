"""How fast the engine generates for one request; tells claims which deadlines cannot be met."""

from gristmill.worker.engine.interface import Response

STEP = 1 / 16
"""Weight of the newest request."""


class TokenTime:
    """Follows what the engine's requests take.

    Attributes:
        ms_per_token: From one output token of a request to its next; 0 before any was seen.
    """

    def __init__(self) -> None:
        self.ms_per_token = 0.0

    def learn(self, response: Response, duration_s: float) -> None:
        """Take in one answer.

        Args:
            response: What the engine answered.
            duration_s: From its arrival at the engine to the answer.
        """
        if response.output_tokens < 2:
            return
        ms = (duration_s - (response.ttft_s or 0)) * 1000 / (response.output_tokens - 1)
        self.ms_per_token += (ms - self.ms_per_token) * (STEP if self.ms_per_token else 1)
