"""Run a batch with parser, engine client and runner of `vllm run-batch`; time the runner."""

import asyncio
import json

import vllm
from peers.systems.report import Report, arguments, openai_answers

try:
    from vllm.entrypoints.launchers import run_batch
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
except ImportError:
    from vllm.entrypoints.openai import run_batch
    from vllm.entrypoints.openai.api_server import build_async_engine_client
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser


async def main() -> None:
    source, target, argv = arguments()
    report, output = Report(), target.with_suffix(".jsonl")
    parser = run_batch.make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(["-i", str(source), "-o", str(output), *argv])
    context = UsageContext.OPENAI_BATCH_RUNNER
    async with build_async_engine_client(args, usage_context=context) as client:
        report.is_ready()
        await run_batch.run_batch(client, args)
        lines = map(json.loads, output.read_text().splitlines())
        answers = openai_answers({line["custom_id"]: line["response"]["body"] for line in lines})
        report.write(target, answers, f"vLLM {vllm.__version__}")


if __name__ == "__main__":
    asyncio.run(main())
