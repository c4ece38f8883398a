"""Run a batch with Ray Data LLM: a dataset through its vLLM processor, as Ray's guide shows it.

The engine lives only for one pass over the data. So the run is measured inside that pass, from the
first request that the engine gets until the last row arrives.
"""

import os
import time
from typing import Any

import ray
import torch
import vllm
from peers.systems.report import Report, arguments, rows
from ray.data.llm import build_processor, vLLMEngineProcessorConfig
from vllm.utils.argparse_utils import FlexibleArgumentParser

NUM_CPUS = 16
"""CPUs that Ray may assume, on any machine. With fewer, some stages could not start while others
wait for them."""


def asked(row: dict[str, Any]) -> dict[str, Any]:
    params = {"temperature": 0, "max_tokens": row["max_tokens"], "ignore_eos": True}
    return {"messages": row["messages"], "sampling_params": params, "name": row["name"]}


def answered(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": row["name"],
        "text": row["generated_text"],
        "num_tokens": row["num_generated_tokens"],
        "began_s": time.time() - row["time_taken_llm"],
    }


def main() -> None:
    source, target, argv = arguments()
    report = Report()
    parser = vllm.EngineArgs.add_cli_args(FlexibleArgumentParser())
    args = vars(parser.parse_args(argv))
    model = args.pop("model")
    bodies = rows(source)
    ray.init(num_cpus=NUM_CPUS, include_dashboard=False, log_to_driver=False)
    config = vLLMEngineProcessorConfig(
        model_source=model,
        engine_kwargs={k: v for k, v in args.items() if v != parser.get_default(k)},
        concurrency=1,
        batch_size=64,
        log_engine_metrics=False,  # Ray's metrics need more packages, and this script does not read them
        placement_group_config=None
        if torch.cuda.is_available()
        else {"bundles": [{"CPU": os.cpu_count() or 1}]},
    )
    processor = build_processor(config, preprocess=asked, postprocess=answered)
    items = [
        {"name": name, "messages": body["messages"], "max_tokens": body["max_tokens"]}
        for name, body in bodies.items()
    ]
    done = processor(ray.data.from_items(items)).take_all()
    report.ready_s = min(row["began_s"] for row in done)
    answers = {row["name"]: (row["text"], row["num_tokens"]) for row in done}
    report.write(target, answers, f"ray {ray.__version__}, vLLM {vllm.__version__}")
    ray.shutdown()


if __name__ == "__main__":
    main()
