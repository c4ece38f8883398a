"""Read the model from vLLM's flags, without vLLM's own parser, which imports torch.

`gristmill run` asks, because a resumed run must have the same model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from gristmill.worker.engine.vllm.resource_flags import FlagParser, with_dashes


@dataclass(frozen=True, slots=True)
class ModelFlags:
    """The model that vLLM's flags name.

    Attributes:
        model: Name or folder of the model; None if the flags do not say it.
        revision: Commit, tag or branch of the model; None for its default.
        config: File with more flags, which may name the model; None for none.
    """

    model: str | None
    revision: str | None
    config: str | None

    @classmethod
    def read(cls, argv: Sequence[str]) -> Self:
        """Read the flags.

        Args:
            argv: vLLM's arguments, which follow `--` on the worker's command line.

        Raises:
            SettingsError: One of these flags has no value.
        """
        parser = FlagParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--model")
        parser.add_argument("--revision")
        parser.add_argument("--config")
        args, _ = parser.parse_known_args([with_dashes(word) for word in argv])
        first = argv[0] if argv and not argv[0].startswith("-") else None
        return cls(args.model or first, args.revision, args.config)
