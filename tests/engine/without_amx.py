"""Run an engine in a sandbox that refuses AMX; `test_engine_amx.py` starts it as a process.

A seccomp filter answers EPERM to `arch_prctl(ARCH_REQ_XCOMP_PERM)`; children inherit it. This prints one
line of JSON: the state that `prepare_amx` returns, the HTTP status of one request, and its output tokens.
"""

import asyncio
import ctypes
import json
import sys
from collections.abc import Sequence

ARCH_PRCTL, ARCH_REQ_XCOMP_PERM = 158, 0x1023  # x86-64: asm/unistd_64.h, asm/prctl.h
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF, linux/bpf_common.h
NUMBER_OFFSET, ARGUMENT_OFFSET = 0, 16  # struct seccomp_data
ALLOW, EPERM = 0x7FFF0000, 0x00050001


class Instruction(ctypes.Structure):
    """`struct sock_filter`."""

    _fields_ = (
        ("code", ctypes.c_ushort),
        ("jump_true", ctypes.c_ubyte),
        ("jump_false", ctypes.c_ubyte),
        ("value", ctypes.c_uint),
    )


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(Instruction)))


def refuse_amx() -> None:
    """Install the filter in this process."""
    instructions = (
        Instruction(LOAD, 0, 0, NUMBER_OFFSET),
        Instruction(JUMP_IF_EQUAL, 0, 3, ARCH_PRCTL),
        Instruction(LOAD, 0, 0, ARGUMENT_OFFSET),
        Instruction(JUMP_IF_EQUAL, 0, 1, ARCH_REQ_XCOMP_PERM),
        Instruction(RETURN, 0, 0, EPERM),
        Instruction(RETURN, 0, 0, ALLOW),
    )
    array = (Instruction * len(instructions))(*instructions)
    program = Program(len(instructions), array)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")


async def main(argv: Sequence[str]) -> None:
    from gristmill.worker.engine import InProcessEngine
    from gristmill.worker.engine.vllm.amx import prepare_amx

    engine = InProcessEngine(argv)
    await engine.start()
    body = b'{"model": "tiny", "prompt": "hello", "max_tokens": 5, "ignore_eos": true}'
    response = await engine.post("/v1/completions", body)
    await engine.close()
    sys.stdout.write(json.dumps([prepare_amx(), response.status, response.output_tokens]) + "\n")


if __name__ == "__main__":
    refuse_amx()
    asyncio.run(main(sys.argv[1:]))
