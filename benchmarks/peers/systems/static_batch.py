"""Run a batch with transformers alone: batches of 32 in file order, padded on the left.

Each batch runs until its longest answer ends. Only the tokens that a row asked for count.
"""

import torch
import transformers
import vllm
from peers.systems.report import Report, arguments, rows
from vllm.utils.argparse_utils import FlexibleArgumentParser

BATCH_SIZE = 32


def load(args: "vllm.EngineArgs") -> "transformers.PreTrainedModel":
    if args.load_format == "dummy":
        config = transformers.AutoConfig.from_pretrained(args.model)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=config.dtype)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=args.dtype)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def main() -> None:
    source, target, argv = arguments()
    report = Report()
    parser = vllm.EngineArgs.add_cli_args(FlexibleArgumentParser())
    args = parser.parse_args(argv)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = load(args)
    report.is_ready()
    bodies = list(rows(source).items())
    answers = {}
    for start in range(0, len(bodies), BATCH_SIZE):
        chunk = bodies[start : start + BATCH_SIZE]
        longest = max(body["max_tokens"] for _, body in chunk)
        inputs = tokenizer.apply_chat_template(
            [body["messages"] for _, body in chunk],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        ).to(model.device)
        with torch.inference_mode():
            tokens = model.generate(
                **inputs,
                do_sample=False,
                min_new_tokens=longest,
                max_new_tokens=longest,
                pad_token_id=tokenizer.pad_token_id,
            )[:, inputs["input_ids"].shape[1] :]
        for (name, body), row in zip(chunk, tokens, strict=True):
            wanted = row[: body["max_tokens"]]
            answers[name] = (tokenizer.decode(wanted, skip_special_tokens=True), len(wanted))
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    report.write(target, answers, versions)


if __name__ == "__main__":
    main()
