"""Run a batch with vLLM's offline class: tokenize all prompts, then call `LLM.generate` once."""

import vllm
from peers.systems.report import Report, arguments, rows
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    source, target, argv = arguments()
    report = Report()
    parser = vllm.EngineArgs.add_cli_args(FlexibleArgumentParser())
    llm = vllm.LLM(**vars(parser.parse_args(argv)))
    report.is_ready()
    bodies = rows(source)
    tokenizer = llm.get_tokenizer()
    prompts = [
        tokenizer.apply_chat_template(
            body["messages"], tokenize=True, add_generation_prompt=True, return_dict=False
        )
        for body in bodies.values()
    ]
    params = [
        vllm.SamplingParams(temperature=0, max_tokens=body["max_tokens"], ignore_eos=True)
        for body in bodies.values()
    ]
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    completions = [output.outputs[0] for output in outputs]
    answers = {
        name: (completion.text, len(completion.token_ids))
        for name, completion in zip(bodies, completions, strict=True)
    }
    report.write(target, answers, f"vLLM {vllm.__version__}")


if __name__ == "__main__":
    main()
