"""Start the first engine of a search, and find out how many such engines the device holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.bench.loads import LoadRequest
from gristmill.bench.tune.candidates import Setting
from gristmill.bench.tune.engine_flags import (
    SEQUENCES,
    decides_graphs,
    has_any,
    model_of,
    setting_of,
    value_of,
)
from gristmill.bench.tune.engine_pool import EnginePool
from gristmill.bench.tune.engine_process import FlagsRefused
from gristmill.bench.tune.engine_share import utilization
from gristmill.bench.tune.model_memory import (
    ENOUGH_CACHE,
    MANY_SEQS,
    num_shares,
    read_model_memory,
    wanted_tokens,
)
from gristmill.bench.tune.search_record import Card
from gristmill.shared.cli import say
from gristmill.shared.errors import EngineDied, GristmillError
from gristmill.worker.engine.vllm.resource_flags import KV_CACHE_BYTES, ResourceFlags

FIRST_START_TIMEOUT_S = 1800.0
"""Seconds for the first start, which may load and compile. A start longer than the budget is an
error."""

MAX_ENGINES = 4
"""Most engines that the search tries on a GPU, unless `--engines` says another number."""


@dataclass(frozen=True, slots=True)
class FirstEngine:
    """The first engine, with the user's flags.

    Attributes:
        info: Its `EngineInfo`.
        setting: Its setting.
        card: Limits of the device.
    """

    info: dict[str, Any]
    setting: Setting
    card: Card


async def first_engine(pool: EnginePool, max_engines: int | None) -> FirstEngine:
    """Start the first engine with a share of the device that lets most engines fit.

    If it does not start, or its KV cache is too small for the sample, the shares become larger.

    Args:
        pool: Pool without engines.
        max_engines: Most engines; None for `MAX_ENGINES` on one GPU, else for one.

    Raises:
        GristmillError: The engine does not start with the user's flags.
    """
    try:
        devices = await pool.devices(FIRST_START_TIMEOUT_S)
        slots = num_slots(devices, pool.argv, pool.sample.requests(), max_engines)
        if slots > 1:
            say(
                f"  {devices['name']}: up to {slots} engines, each with an equal part of the memory"
            )
        info = await _started(pool, slots)
        while not info or (slots > 1 and not _has_cache(pool, info)):
            slots //= 2
            say(f"  its part of the memory is too small; up to {slots} engines")
            await pool.end_engines()
            info = await _started(pool, slots)
    except EngineDied as error:
        raise GristmillError(f"the engine does not start with these flags: {error}") from error
    is_open = not decides_graphs(pool.argv)
    has_gulps = bool(info["has_decode_graphs"])
    card = Card(slots, has_gulps, has_capture=has_gulps and is_open)
    return FirstEngine(info, setting_of(info, slots), card)


def num_slots(
    devices: Mapping[str, Any],
    argv: Sequence[str],
    load: Sequence[LoadRequest],
    max_engines: int | None,
) -> int:
    """Return how many engines the device may hold, by what is known before the first start.

    Args:
        devices: The machine's `Devices` as a dictionary.
        argv: The user's flags.
        load: The sample.
        max_engines: Most engines; None for `MAX_ENGINES` on one GPU, else for one.
    """
    is_spread = devices["kind"] != "cuda" or ResourceFlags.read(argv).num_devices > 1
    if max_engines == 1 or is_spread or has_any(argv, [KV_CACHE_BYTES]):
        return max_engines or 1
    sequences = int(value_of(argv, SEQUENCES) or MANY_SEQS)
    model, memory_bytes = read_model_memory(model_of(argv)), int(devices["memory_bytes"])
    tokens, most = wanted_tokens(load, sequences), max_engines or MAX_ENGINES
    return num_shares(model, utilization(argv) * memory_bytes, tokens, most)


async def _started(pool: EnginePool, slots: int) -> dict[str, Any]:
    """Return the engine's info; empty if it failed, but may start with more memory."""
    try:
        return await pool.start(None, FIRST_START_TIMEOUT_S, slots)
    except FlagsRefused:
        raise
    except EngineDied:
        if slots == 1:
            raise
        return {}


def _has_cache(pool: EnginePool, info: dict[str, Any]) -> bool:
    wanted = wanted_tokens(pool.sample.requests(), int(info["max_num_seqs"]))
    return not info["kv_cache_tokens"] or info["kv_cache_tokens"] >= ENOUGH_CACHE * wanted


def least_tokens(info: dict[str, Any], argv: Sequence[str]) -> int:
    """Return the smallest `max_num_batched_tokens` with which the engine starts."""
    return int(info["max_model_len"]) if has_any(argv, ["--no-enable-chunked-prefill"]) else 1
