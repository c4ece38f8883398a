"""A worker process whose engine dies of a chosen prompt: the test-only hook of the supervision tests.

The prompt `CULPRIT` (token ids, so that no tokenizer changes it) ends EngineCore with SIGKILL a moment
after it was admitted, when its neighbours run beside it.
"""

import os
import signal
import sys
import threading

from gristmill.worker.__main__ import main
from gristmill.worker.engine.vllm.arguments import prepare_environment

CULPRIT = [66, 6, 66, 6, 66]
FUSE_S = 0.2


def _arm() -> None:
    prepare_environment()
    from vllm.v1.engine.core import EngineCore

    admit = EngineCore.add_request

    def armed(self: EngineCore, request: object, *args: object, **kwargs: object) -> None:
        admit(self, request, *args, **kwargs)
        if list(getattr(request, "prompt_token_ids", None) or ()) == CULPRIT:
            threading.Timer(FUSE_S, os.kill, (os.getpid(), signal.SIGKILL)).start()

    EngineCore.add_request = armed


if __name__ in ("__main__", "__mp_main__"):  # vLLM forks EngineCore, or spawns it
    _arm()
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
