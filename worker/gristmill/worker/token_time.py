"""Measure the time per output token of one request.

Claims use it to find deadlines that cannot be met.
"""

from gristmill.worker.engine.interface import Response

STEP = 1 / 16
"""Weight of the newest request in the moving average."""


class TokenTime:
    """Keeps a moving average of the time per output token.

    Attributes:
        ms_per_token: Milliseconds from one output token of a request to its next; 0 before the
            first measurement.
    """

    def __init__(self) -> None:
        self.ms_per_token = 0.0

    def learn(self, response: Response, duration_s: float) -> None:
        """Add one answer to the average.

        Args:
            response: The engine's answer.
            duration_s: Seconds from the request's arrival at the engine to the answer.
        """
        if response.output_tokens < 2:
            return
        ms = (duration_s - (response.ttft_s or 0)) * 1000 / (response.output_tokens - 1)
        self.ms_per_token += (ms - self.ms_per_token) * (STEP if self.ms_per_token else 1)
