"""A request in the words of each server."""

from collections.abc import Sequence

from runtime.config import Request, Sampling
from runtime.errors import InvalidSetting
from runtime.remote.server import Kind, Served


def body_of(
    served: Served, prompt: Sequence[int] | str, request: Request, eos_ids: frozenset[int]
) -> dict[str, object]:
    """What is posted to `/v1/completions`.

    Filters that are off are said to be off: every server has defaults of its own. Raises `InvalidSetting` for what
    cannot be asked of this one.
    """
    if request.logprobs is not None:
        raise InvalidSetting("logprobs", request.logprobs, "nothing with --engine")
    sampling = request.sampling
    body: dict[str, object] = {
        "model": served.model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": request.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        **_beyond_openai(served.kind, sampling),
    }
    if request.stop:
        body["stop"] = list(request.stop)
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if served.kind in ("vLLM", "SGLang"):
        body["stop_token_ids"] = sorted(eos_ids)
    if served.kind == "vLLM":
        body["return_token_ids"] = True
    return body


def _beyond_openai(kind: Kind, sampling: Sampling) -> dict[str, object]:
    penalty = sampling.repetition_penalty
    match kind:
        case "vLLM" | "SGLang":
            return {"top_k": sampling.top_k or -1, "min_p": sampling.min_p, "repetition_penalty": penalty}
        case "llama.cpp":
            wide = {"repeat_last_n": -1}  # else penalties see the last 64 tokens alone
            return {"top_k": sampling.top_k, "min_p": sampling.min_p, "repeat_penalty": penalty, **wide}
        case "llama-cpp-python":
            return {"top_k": sampling.top_k, "min_p": sampling.min_p, "repeat_penalty": penalty}
        case "other":
            values: dict[str, tuple[float, float]] = {
                "top_k": (sampling.top_k, 0),
                "min_p": (sampling.min_p, 0),
                "repetition_penalty": (penalty, 1),
            }
            for name, (value, off) in values.items():
                if value != off:
                    allowed = "nothing else with this server, which is none that Fullread knows"
                    raise InvalidSetting(name.replace("_", "-"), value, f"{off}, and {allowed}")
            return {}


def sampling_notes(kind: Kind, sampling: Sampling) -> tuple[str, ...]:
    """What a person must be told about sampling there."""
    if kind == "llama-cpp-python" and (sampling.counts_sequence or sampling.counts_answer):
        return ("This server's penalties count the last 64 tokens alone, those of the documents among them.",)
    return ()
