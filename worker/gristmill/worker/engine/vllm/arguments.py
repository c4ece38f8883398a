"""Turn the arguments of `vllm serve` into the configuration of AsyncLLM.

vLLM's own parser reads the words after `--`, so this module translates no flag. It adds clear
errors, because argparse would end the worker with an unexplained code. It also adds defaults for a
CPU.
"""

import os
from argparse import Namespace
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from gristmill.shared.errors import SettingsError
from gristmill.shared.media import NO_DOMAIN
from gristmill.shared.tracing import traces_endpoint
from gristmill.worker.engine.vllm import compat
from gristmill.worker.engine.vllm.devices import Devices, available_memory_bytes, compute_threads
from gristmill.worker.flag_secrets import without_secrets

MAX_CPU_KV_CACHE_BYTES = 4 * 2**30
"""Largest default size of the KV cache on a CPU; a quarter of the free memory if that is less.

vLLM's own default on a CPU is a share of NUMA node 0, whose size says little about the machine.
"""

CPU_WORKER = "gristmill.worker.engine.vllm.cpu_worker.AmxWorker"
"""Name by which vLLM imports the CPU worker class, unless `--worker-cls` names another."""

STRUCTURED_OUTPUT_BACKEND = "xgrammar"
"""Structured-output backend in the place of vLLM's `auto`, which is the backend of the engine's first such request.

A later request that suits only another backend then fails or loses its constraint. So `auto` would let the
outcome of a request depend on another one. vLLM's tool calls need this backend.
"""

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # else an allowed host could redirect to any host
}


def prepare_environment() -> None:
    """Set the environment variables of vLLM that the operator has not set.

    The variables stop usage statistics and redirects of media URLs. They send vLLM's log to stderr,
    because the worker writes its own log to stdout, one JSON object a line. Call this before
    importing vllm.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def _reworded(error: SettingsError, argv: Sequence[str]) -> SettingsError:
    """Return an error of vLLM's parser without secrets.

    The parser's message quotes the arguments that it did not understand.
    """
    message = str(error)
    for argument, shown in zip(argv, without_secrets(argv), strict=True):
        if argument != shown:
            message = message.replace(argument, shown)
    return SettingsError(message)


def serve_arguments(argv: Sequence[str], media_domains: Collection[str] = ()) -> Namespace:
    """Parse vLLM's arguments, which follow `--` on the worker's command line.

    Args:
        argv: vLLM's arguments, such as `["--model", "X", "--max-num-seqs", "256"]`; the model may
            also stand first.
        media_domains: Hosts from which vLLM may fetch media, unless `argv` names them. Without any,
            vLLM fetches from no host.

    Returns:
        The namespace that `vllm serve` would have, with `model` and one structured-output backend set.

    Raises:
        SettingsError: There is no model, the model folder does not exist, or vLLM does not know a
            flag.
    """
    try:
        domains = sorted(media_domains) or [NO_DOMAIN]
        args = compat.parse_serve_arguments(
            _model_first(argv), domains, traces_endpoint(os.environ)
        )
    except SettingsError as error:
        raise _reworded(error, argv) from None
    except (TypeError, ValueError) as error:
        raise SettingsError(f"vLLM does not take these arguments: {error}") from error
    if args.model_tag is None:
        raise SettingsError("no model given; name one after --, such as: -- --model Qwen/Qwen3-8B")
    args.model = args.model_tag
    check_path(args.model)
    if args.structured_outputs_config.backend == "auto":
        args.structured_outputs_config.backend = STRUCTURED_OUTPUT_BACKEND
    return args


def settle_for_device(args: Namespace, devices: Devices) -> None:
    """Check the arguments against the devices, and set the defaults for a CPU.

    Args:
        args: Parsed arguments. On a CPU the function changes `worker_cls`,
            `kv_cache_memory_bytes` and `max_loras` in place.
        devices: The devices of this machine.

    Raises:
        SettingsError: The arguments ask for more devices than are visible, or for a type in which
            the devices do not compute.
    """
    if devices.is_cpu:
        _settle_for_cpu(args)
    elif args.tensor_parallel_size > devices.num_devices:
        raise SettingsError(
            f"--tensor-parallel-size {args.tensor_parallel_size} needs as many devices, and "
            f"{devices.num_devices} of {devices.name} are visible; lower it or give the pod more"
        )
    if args.dtype == "bfloat16" and not devices.supports_bf16:
        raise SettingsError(
            f"--dtype bfloat16 is not supported by {devices.name}; use --dtype float16 or auto"
        )


def engine_config(args: Namespace) -> tuple[Any, Any]:
    """Return `AsyncEngineArgs` and the `VllmConfig` made from them.

    The usage context is LLM_CLASS, because vLLM looks up its default limits by the context.
    LLM_CLASS gets the limits for offline work: 1,024 sequences and 16,384 tokens a step on an
    H100. Most other contexts get 128 and 2,048.

    Raises:
        SettingsError: vLLM refuses the arguments, does not find the model or does not support it.
    """
    from vllm.usage.usage_lib import UsageContext

    try:
        engine_args = compat.engine_arguments(args)
        config = engine_args.create_engine_config(UsageContext.LLM_CLASS)
    except Exception as error:  # no engine runs yet, so any error is about the arguments
        raise SettingsError(f"vLLM refuses model {args.model}: {error}") from error
    compat.widen_renderer(config.model_config)
    return engine_args, config


def cpu_kv_cache_bytes() -> int:
    """Return the default size of the KV cache on a CPU; see `MAX_CPU_KV_CACHE_BYTES`."""
    return min(MAX_CPU_KV_CACHE_BYTES, available_memory_bytes() // 4)


def _model_first(argv: Sequence[str]) -> list[str]:
    """Move `--model X` or `--model=X` to the front, where `vllm serve` expects the model."""
    for index, arg in enumerate(argv):
        if arg.startswith("--model="):
            return [arg.removeprefix("--model="), *argv[:index], *argv[index + 1 :]]
        if arg == "--model":
            if index + 1 == len(argv):
                raise SettingsError("--model has no value; give a model's name or folder")
            return [argv[index + 1], *argv[:index], *argv[index + 2 :]]
    return list(argv)


def check_path(model: str) -> None:
    """Raise if the model is a path that does not exist; vLLM would look for it on a hub."""
    if model.startswith(("/", "./", "../", "~")) and not Path(model).exists():
        raise SettingsError(f"model folder {model} does not exist; give a folder or a model's name")


def _settle_for_cpu(args: Namespace) -> None:
    if args.worker_cls == "auto":
        args.worker_cls = CPU_WORKER
    if args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size == 1:
        # vLLM's worker then runs inside EngineCore: one process less, and all cores compute.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("OMP_NUM_THREADS", str(compute_threads()))
    if args.kv_cache_memory_bytes is None and not os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
        args.kv_cache_memory_bytes = cpu_kv_cache_bytes()
    if args.enable_lora:
        # Keep the last adapter slot empty. If a batch holds requests for adapters too, vLLM's CPU
        # kernels apply that slot to the base model's requests (vllm-project/vllm#48421).
        args.max_loras = max(args.max_loras, len(args.lora_modules or ()) + 1)
