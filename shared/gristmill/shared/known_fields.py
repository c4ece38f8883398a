"""Find the fields of a body that the engine would ignore: misspelt ones, removed ones, and those of other servers.

vLLM answers 200 to a body with a field that it does not know, so a constraint or a limit would be dropped silently.
`Request.from_body` calls this. A test compares the table with the request classes of the installed vLLM.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import shown

UNKNOWN_FIELD = "unknown_field"
"""Code of the warning, or of the error, about a field that the engine ignores."""

REPLACED: Mapping[str, str] = {
    "guided_json": 'use "structured_outputs": {"json": ...}',
    "guided_regex": 'use "structured_outputs": {"regex": ...}',
    "guided_choice": 'use "structured_outputs": {"choice": [...]}',
    "guided_grammar": 'use "structured_outputs": {"grammar": ...}',
    "guided_whitespace_pattern": 'use "structured_outputs": {"json": ..., "whitespace_pattern": ...}',
    "guided_decoding_backend": "leave it out; the operator chooses the backend: --structured-outputs-config.backend",
    "extra_body": "it is an argument of OpenAI's Python client; write its fields into the body itself",
}
"""Field that vLLM removed, or that no body has -> what replaces it."""

MAX_NAMED = 5
"""Fields that a message names; the others are counted."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALL = _names("model request_id priority user cache_salt chat_template_kwargs mm_processor_kwargs")
_SAMPLING = _names("""
    allowed_token_ids bad_words frequency_penalty ignore_eos include_stop_str_in_output length_penalty
    logit_bias logprob_token_ids logprobs max_tokens min_p min_tokens n presence_penalty prompt_logprobs
    repetition_detection repetition_penalty seed skip_special_tokens spaces_between_special_tokens stop
    stop_token_ids temperature thinking_token_budget top_k top_p truncate_prompt_tokens truncation_side
    use_beam_search watermarking response_format structured_outputs
""")
_SERVING = _names("""
    add_special_tokens ec_transfer_params echo kv_transfer_params mm_payload return_mm_kwargs
    return_token_ids return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start session_id
    stream stream_interval stream_options vllm_xargs prompt_cache_key
""")
_TEMPLATE = _names(
    "add_generation_prompt add_special_tokens chat_template continue_final_message media_io_kwargs"
)
_POOLING = _names("padding truncate_prompt_tokens truncation_side use_activation")
_VECTORS = _names("dimensions embed_dtype encoding_format endianness input messages")
_SCORE = _names("instruction max_tokens_per_doc max_tokens_per_query")
_MESSAGES = _names("messages output_config system thinking tool_choice tools")

_OF_SCORE = _ALL | _POOLING | _SCORE | _names("data_1 data_2 documents items queries text_1 text_2")
_OF_RERANK = _ALL | _POOLING | _SCORE | _names("query documents top_n")

KNOWN: Mapping[str, frozenset[str]] = {
    "/v1/chat/completions": _ALL | _SAMPLING | _SERVING | _TEMPLATE | _names("""
        documents include_reasoning max_completion_tokens messages parallel_tool_calls reasoning_effort
        return_prompt_text tool_choice tools top_logprobs
    """),
    "/v1/completions": _ALL | _SAMPLING | _SERVING | _names("prompt prompt_embeds suffix"),
    "/v1/embeddings": _ALL | _POOLING | _TEMPLATE | _VECTORS,
    "/v1/responses": _ALL | _names("""
        background ec_transfer_params enable_response_messages frequency_penalty ignore_eos include
        include_reasoning include_stop_str_in_output input instructions kv_transfer_params logit_bias
        max_output_tokens max_tool_calls media_io_kwargs metadata min_p mm_payload parallel_tool_calls
        presence_penalty previous_input_messages previous_response_id prompt prompt_cache_key reasoning
        repetition_penalty return_mm_kwargs seed service_tier session_id skip_special_tokens stop
        stop_token_ids store stream structured_outputs temperature text tool_choice tools top_k top_logprobs
        top_p truncation vllm_xargs watermarking
    """),
    "/v1/messages": _ALL | _MESSAGES | _names("""
        ec_transfer_params kv_transfer_params max_tokens metadata mm_payload return_mm_kwargs stop_sequences
        stream temperature top_k top_p vllm_xargs watermarking
    """),
    "/v1/messages/count_tokens": _ALL | _MESSAGES,
    "/v1/score": _OF_SCORE,
    "/score": _OF_SCORE,
    "/v1/rerank": _OF_RERANK,
    "/rerank": _OF_RERANK,
    "/v2/rerank": _OF_RERANK,
    "/pooling": _ALL | _POOLING | _TEMPLATE | _VECTORS | _names("data prompt task"),
    "/classify": _ALL | _POOLING | _TEMPLATE | _names("input messages"),
    "/tokenize": _ALL | _TEMPLATE | _names("messages prompt return_token_strs tools"),
    "/detokenize": _names("model tokens"),
}  # fmt: skip
"""Endpoint -> fields that the engine reads, and `prompt_cache_key`, which Gristmill reads (`prefix.py`)."""


def unknown_fields(body: Mapping[str, Any], endpoint: str) -> tuple[str, ...]:
    """Return the fields of a body that the engine ignores; a null field counts as absent.

    Args:
        body: An OpenAI request.
        endpoint: Endpoint of the request; for an unknown one all fields are taken for known.

    Raises:
        InvalidRequest: A field was removed from vLLM; the message says what replaces it.
    """
    unknown = body.keys() - KNOWN.get(endpoint, body.keys())
    if not unknown:
        return ()
    found = sorted(name for name in map(str, unknown) if body.get(name) is not None)
    for name in found:
        if name in REPLACED:
            message = f"the engine ignores the field {name!r} of a body; {REPLACED[name]}"
            raise InvalidRequest(message, UNKNOWN_FIELD)
    return tuple(found)


def unknown_in_words(names: Sequence[str], endpoint: str) -> str:
    """Return the message for fields that the engine ignores, with the nearest known one.

    Args:
        names: What `unknown_fields` returned; not empty.
        endpoint: Endpoint of the request.
    """
    named = ", ".join(_with_nearest(name, endpoint) for name in names[:MAX_NAMED])
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return f"the engine ignores these fields of its body: {named}{more}; correct or remove them"


def _with_nearest(name: str, endpoint: str) -> str:
    nearest = get_close_matches(name[:100], sorted(KNOWN[endpoint]), n=1, cutoff=0.8)
    return f"{shown(name)} (did you mean {nearest[0]!r}?)" if nearest else shown(name)
