"""From the arguments that `vllm serve` takes to what AsyncLLM is built from.

Nothing is translated: the argv after `--` is parsed by vLLM's own parser. What is added are clear
errors, because argparse would end the worker with an unexplained code, and defaults for a CPU.
"""

import os
import re
from argparse import Namespace
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from gristmill.shared.errors import SettingsError
from gristmill.shared.media import NO_DOMAIN
from gristmill.worker.engine.vllm import compat
from gristmill.worker.engine.vllm.devices import Devices, available_memory_bytes, compute_threads

MAX_CPU_KV_CACHE_BYTES = 4 * 2**30
"""KV cache on a CPU unless set: this, or a quarter of the free memory if that is less.

vLLM's own default there is a share of NUMA node 0, whose size says little about the machine.
"""

CPU_WORKER = "gristmill.worker.engine.vllm.cpu_worker.AmxWorker"
"""What computes on a CPU unless `--worker-cls` names another class; vLLM imports it by this name."""

HIDDEN = "***"

_SECRET_FLAGS = ("--api-key", "--hf-token")
_LIKE_A_SECRET = re.compile("api-?key|hf-?token|secret|password")

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # an allowed host could redirect to any other
}


def prepare_environment() -> None:
    """Set vLLM's environment where the operator has not; call it before importing vllm.

    No usage statistics are sent, and vLLM's log goes to stderr: stdout is the worker's, one JSON
    object a line.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def without_secrets(argv: Sequence[str]) -> list[str]:
    """Return the arguments for people to look at, keys and tokens hidden."""
    shown: list[str] = []
    is_secret = False
    for argument in argv:
        name, has_value, _ = argument.partition("=")
        if argument.startswith("--"):
            is_secret = _names_a_secret(name.replace("_", "-"))
            shown.append(f"{name}={HIDDEN}" if is_secret and has_value else argument)
        else:
            shown.append(HIDDEN if is_secret else argument)
    return shown


def _names_a_secret(flag: str) -> bool:
    """Whether a flag takes a secret; argparse takes abbreviations, and people mistype."""
    is_short_form = len(flag) > len("--") and any(full.startswith(flag) for full in _SECRET_FLAGS)
    return is_short_form or bool(_LIKE_A_SECRET.search(flag))


def _reworded(error: SettingsError, argv: Sequence[str]) -> SettingsError:
    """Return an error of vLLM's parser, which quotes what it did not understand, without secrets."""
    message = str(error)
    for argument, shown in zip(argv, without_secrets(argv), strict=True):
        if argument != shown:
            message = message.replace(argument, shown)
    return SettingsError(message)


def serve_arguments(argv: Sequence[str], media_domains: Collection[str] = ()) -> Namespace:
    """Parse what follows `--` on the worker's command line.

    Args:
        argv: Such as `["--model", "X", "--max-num-seqs", "256"]`; the model may also stand first.
        media_domains: Hosts from which vLLM may fetch media unless `argv` says which; none if empty.

    Returns:
        The namespace that `vllm serve` would have, `model` filled in.

    Raises:
        SettingsError: No model, a model folder that does not exist, or a flag vLLM does not know.
    """
    try:
        domains = sorted(media_domains) or [NO_DOMAIN]
        args = compat.parse_serve_arguments(_model_first(argv), domains)
    except SettingsError as error:
        raise _reworded(error, argv) from None
    except (TypeError, ValueError) as error:
        raise SettingsError(f"vLLM does not take these arguments: {error}") from error
    if args.model_tag is None:
        raise SettingsError("no model given; name one after --, such as: -- --model Qwen/Qwen3-8B")
    args.model = args.model_tag
    _check_path(args.model)
    return args


def settle_for_device(args: Namespace, devices: Devices) -> None:
    """Check the arguments against the devices, and fill in what a CPU needs.

    Args:
        args: Changed in place: `worker_cls`, `kv_cache_memory_bytes` and `max_loras` on a CPU.
        devices: What this machine has.

    Raises:
        SettingsError: More devices asked for than there are, or a type they do not compute in.
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

    The usage context is LLM_CLASS: the limits for offline work (1,024 sequences, 16,384 tokens a
    step on an H100) are looked up by it, and most other contexts get 128 and 2,048.

    Raises:
        SettingsError: vLLM refuses the combination, or does not find or know the model.
    """
    from vllm.usage.usage_lib import UsageContext

    try:
        engine_args = compat.engine_arguments(args)
        return engine_args, engine_args.create_engine_config(UsageContext.LLM_CLASS)
    except Exception as error:  # whatever it is, it is about the arguments: nothing runs yet
        raise SettingsError(f"vLLM refuses model {args.model}: {error}") from error


def _model_first(argv: Sequence[str]) -> list[str]:
    """`vllm serve` wants the model first; `--model X` and `--model=X` are moved there."""
    for index, arg in enumerate(argv):
        if arg.startswith("--model="):
            return [arg.removeprefix("--model="), *argv[:index], *argv[index + 1 :]]
        if arg == "--model":
            if index + 1 == len(argv):
                raise SettingsError("--model has no value; give a model's name or folder")
            return [argv[index + 1], *argv[:index], *argv[index + 2 :]]
    return list(argv)


def _check_path(model: str) -> None:
    """A name that can only be a path must exist; vLLM would look for it on a hub."""
    if model.startswith(("/", "./", "../", "~")) and not Path(model).exists():
        raise SettingsError(f"model folder {model} does not exist; give a folder or a model's name")


def _settle_for_cpu(args: Namespace) -> None:
    if args.worker_cls == "auto":
        args.worker_cls = CPU_WORKER
    if args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size == 1:
        # The worker then lives inside EngineCore: one process less, and all cores compute.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("OMP_NUM_THREADS", str(compute_threads()))
    if args.kv_cache_memory_bytes is None and not os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
        args.kv_cache_memory_bytes = min(MAX_CPU_KV_CACHE_BYTES, available_memory_bytes() // 4)
    if args.enable_lora:
        # vLLM's CPU kernels give a request for the base, in a batch with an adapter's, what lies in the
        # last place for adapters (vllm-project/vllm#48421): so that one stays empty.
        args.max_loras = max(args.max_loras, len(args.lora_modules or ()) + 1)
