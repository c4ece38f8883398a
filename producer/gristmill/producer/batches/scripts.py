"""The Lua scripts of batches, ready to be called."""

from importlib.resources import files
from typing import Any

from gristmill.shared.redis_types import AnyRedis


def lua_script(redis: AnyRedis, name: str) -> Any:
    """Return the script `lua/<name>.lua`; call it with `keys=[prefix]` and `args`."""
    lua = files("gristmill.producer.batches") / "lua"
    return redis.register_script((lua / f"{name}.lua").read_text())
