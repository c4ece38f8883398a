"""The tiny model of the engine tests: a random Llama of 220 KB that vLLM loads like any other.

Made once into `<repository>/.cache/models/tiny` and reused; nothing is downloaded.
"""

import json
import os
import shutil
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "models"

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CORPUS = ["the quick brown fox jumps over the lazy dog", "user assistant system hello world"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MAX_MODEL_LEN = 2048
LORA_RANK = 8


def tiny_model(cache_dir: Path = CACHE) -> Path:
    """Return the folder of the tiny model, making it on the first call.

    Args:
        cache_dir: Where the folder `tiny` lies. Two processes may make it at the same time:
            each writes beside it and the first rename wins.

    Returns:
        A Hugging Face model folder: 2 layers, 316 tokens, ChatML, `MAX_MODEL_LEN` positions.
    """
    folder = cache_dir / "tiny"
    if folder.is_dir():
        return folder
    cache_dir.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="tiny-", dir=cache_dir))
    _write(draft)
    try:
        os.rename(draft, folder)  # noqa: PTH104  (Path.rename would do; this one says ENOTEMPTY)
    except OSError:
        shutil.rmtree(draft)
    return folder


def lora_adapter(folder: Path) -> Path:
    """Make a LoRA adapter of random weights for the tiny model, in the format of peft.

    Args:
        folder: Where to; it must not exist.

    Returns:
        The folder.
    """
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": LORA_RANK,
        "lora_alpha": LORA_RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    chance = torch.Generator().manual_seed(1)
    weights = {}
    for layer, (name, width) in product(range(2), {"q_proj": 64, "v_proj": 32}.items()):
        at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
        for part, shape in {"lora_A": (LORA_RANK, 64), "lora_B": (width, LORA_RANK)}.items():
            weights[f"{at}.{part}.weight"] = torch.randn(shape, generator=chance).bfloat16()
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


def _write(folder: Path) -> None:
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(folder)
    _network(tokenizer).save_pretrained(folder)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        CORPUS * 4,
        trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _network(tokenizer: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=MAX_MODEL_LEN,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)
