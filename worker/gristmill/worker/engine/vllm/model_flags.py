"""Read the model from vLLM's flags, without vLLM's own parser, which imports torch.

`gristmill run` asks, because a resumed run must have the same model, and because `--dry-run` needs its tokenizer.
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
        tokenizer: Name or folder of the tokenizer; None for that of the model.
        tokenizer_revision: Its commit, tag or branch; None for that of the model.
        max_model_len: Prompt and output tokens of a request; None if the flags do not say a plain number.
    """

    model: str | None
    revision: str | None
    config: str | None
    tokenizer: str | None = None
    tokenizer_revision: str | None = None
    max_model_len: int | None = None

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
        parser.add_argument("--tokenizer")
        parser.add_argument("--tokenizer-revision")
        parser.add_argument("--max-model-len")
        args, _ = parser.parse_known_args([with_dashes(word) for word in argv])
        first = argv[0] if argv and not argv[0].startswith("-") else None
        length = args.max_model_len or ""
        return cls(
            args.model or first,
            args.revision,
            args.config,
            args.tokenizer,
            args.tokenizer_revision,
            int(length) if length.isdecimal() else None,
        )
