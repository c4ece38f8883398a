"""Hide the differences between versions of vLLM (0.24 to 0.33); only this module knows them.

It also calls PyTorch's private functions. The in-process transport calls this module, and importing
it does not load vLLM. A function tries the new import path first, because newer versions keep some
old paths and warn about them.
"""

import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from gristmill.shared.errors import SettingsError

DEFAULT_SHUTDOWN_TIMEOUT_S = 60
"""Seconds that an engine which gets a signal may take to finish its requests."""


def openai_layer() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `build_app` and `init_app_state`; all versions have the same signatures."""
    try:
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app
    except ImportError:  # up to 0.28
        from vllm.entrypoints.openai.api_server import build_app, init_app_state
    return build_app, init_app_state


def error_factory() -> Callable[[Exception], Any]:
    """Return `create_error_response`, which turns an exception into an `ErrorResponse`."""
    try:
        from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    except ImportError:  # up to 0.31
        from vllm.entrypoints.serve.utils.error_response import create_error_response
    return create_error_response  # type: ignore[no-any-return]


def error_type() -> type[Any]:
    """Return the class `ErrorResponse`."""
    try:
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse
    except ImportError:  # up to 0.31
        from vllm.entrypoints.openai.engine.protocol import ErrorResponse
    return ErrorResponse  # type: ignore[no-any-return]


def request_types() -> dict[str, Any]:
    """Return the request class of each endpoint of the hot path."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest

    return {
        "/v1/chat/completions": ChatCompletionRequest,
        "/v1/completions": CompletionRequest,
        "/v1/embeddings": EmbeddingRequest,
    }


def handlers(state: Any) -> dict[str, Callable[..., Any]]:
    """Return the function that answers each endpoint, from the serving objects in `state`.

    Args:
        state: The application's state; it has None for an endpoint that the model cannot serve.
    """
    chat = getattr(state, "openai_serving_chat", None)
    completion = getattr(state, "openai_serving_completion", None)
    found = {
        "/v1/chat/completions": getattr(chat, "create_chat_completion", None),
        "/v1/completions": getattr(completion, "create_completion", None),
        "/v1/embeddings": getattr(state, "serving_embedding", None),
    }
    return {endpoint: handler for endpoint, handler in found.items() if handler is not None}


def schema_refusal() -> Callable[[Any], bool]:
    """Return a function that says whether the structured-output backend refuses a JSON Schema."""
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    def refuses(schema: Any) -> bool:
        if not schema:  # the empty schema takes any JSON, and vLLM takes it for no constraint
            return False
        outputs = StructuredOutputsParams(json=schema)
        try:
            validate_xgrammar_grammar(SamplingParams(structured_outputs=outputs))
        except Exception:  # noqa: BLE001  (a ValueError up to 0.31, then a class of vLLM's)
            return True
        return False

    return refuses


def exit_codes(engine: Any) -> dict[str, int]:
    """Return the exit code of each engine process that has ended, by the process's name.

    A negative code is the number of the signal that killed the process. Engines that Ray runs have
    no such processes.
    """
    manager = engine.engine_core.resources.engine_manager
    finished: dict[str, int] = getattr(manager, "finished_procs", dict)()
    return finished


def exit_codes_of_failed_start(error: BaseException) -> dict[str, int]:
    """Return the exit codes in vLLM's error about a failed start; empty if it names none.

    The processes are gone by then. `launch_core_engines` (v1/engine/utils.py) keeps their codes
    only in the text of its error: `Failed core proc(s): {'EngineCore': -4}`.
    """
    _, _, named = str(error).partition("Failed core proc(s): ")
    return {name: int(code) for name, code in re.findall(r"'([^']+)': (-?\d+)", named)}


def has_amx() -> bool:
    """Return whether the processor has AMX; False if PyTorch cannot tell (another architecture)."""
    return _ask_torch("_is_amx_tile_supported")


def has_avx512_bf16() -> bool:
    """Return whether the processor computes in bfloat16 with AVX-512."""
    return _ask_torch("_is_avx512_bf16_supported")


def request_amx() -> bool:
    """Ask the kernel for permission to use AMX in this process; return whether it was granted."""
    return _ask_torch("_init_amx")


def hide_amx() -> None:
    """Make vLLM in this process believe that the processor has no AMX.

    vLLM asks `torch.cpu._is_amx_tile_supported` each time it chooses a kernel (0.24 to 0.33).
    """
    import torch.cpu

    torch.cpu._is_amx_tile_supported = lambda: False


def _ask_torch(name: str) -> bool:
    """Call a private function of torch.cpu; return False if this version does not have it."""
    import torch.cpu

    function = getattr(torch.cpu, name, None)
    return bool(function and function())


def parse_serve_arguments(
    argv: Sequence[str], media_domains: Sequence[str], otlp_traces_endpoint: str | None
) -> Namespace:
    """Parse the arguments of `vllm serve`, with four defaults that differ from vLLM's.

    - `--scheduling-policy` is `priority`.
    - `--shutdown-timeout` is `DEFAULT_SHUTDOWN_TIMEOUT_S`. A signal may reach the engine's process
      in spite of its session, because systemd signals every process of a unit. The engine then
      drains and aborts nothing.
    - `--allowed-media-domains` are `media_domains`. vLLM allows all domains unless some are named.
    - `--otlp-traces-endpoint` is that of the worker. Without one, vLLM drops the context of a request.

    All versions have `ServeSubcommand` at the same import path.

    Args:
        argv: The model, then flags.
        media_domains: Hosts from which vLLM may fetch media; not empty.
        otlp_traces_endpoint: Where the worker sends its spans; None for nowhere.

    Raises:
        SettingsError: vLLM does not know a flag or value; the message is argparse's.
    """
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise SettingsError(f"vLLM does not take these arguments: {message}; see --help")

    command = ServeSubcommand()
    parser = Parser(prog="gristmill worker --")
    serve = command.subparser_init(parser.add_subparsers(required=True, dest="subparser"))
    serve.set_defaults(
        scheduling_policy="priority",
        shutdown_timeout=DEFAULT_SHUTDOWN_TIMEOUT_S,
        allowed_media_domains=list(media_domains),
        otlp_traces_endpoint=otlp_traces_endpoint,
    )
    args: Namespace = parser.parse_args(["serve", *argv])
    command.validate(args)
    args.api_server_count = None
    return args


def engine_arguments(args: Namespace) -> Any:
    """Load plug-ins and return `AsyncEngineArgs` from parsed arguments, as `vllm serve` does."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    if path := getattr(args, "tool_parser_plugin", None):
        ToolParserManager.import_tool_parser(path)
    if path := getattr(args, "reasoning_parser_plugin", None):
        ReasoningParserManager.import_reasoning_parser(path)
    engine_args = AsyncEngineArgs.from_cli_args(args)
    _propagate_late_interaction(args, engine_args)
    return engine_args


def widen_renderer(model_config: Any) -> None:
    """Let vLLM tokenize in two threads instead of one, so that one large prompt leaves one free.

    vLLM refuses this for multimodal pooling models, whose cache is not safe for two threads.

    Args:
        model_config: vLLM's; a version without this number of threads stays as it is.
    """
    is_pooling = getattr(model_config, "runner_type", "") == "pooling"
    if is_pooling and getattr(model_config, "multimodal_config", None) is not None:
        return
    if getattr(model_config, "renderer_num_workers", 0) == 1:
        model_config.renderer_num_workers = 2


def _propagate_late_interaction(args: Namespace, engine_args: Any) -> None:
    """Copy a pooling flag of the server to the engine's arguments (vLLM 0.32 and later)."""
    try:
        from vllm.entrypoints.common.cli_args import propagate_flash_late_interaction
    except ImportError:
        try:
            from vllm.entrypoints.launchers.cli_args import propagate_flash_late_interaction
        except ImportError:
            return
    propagate_flash_late_interaction(args, engine_args)
