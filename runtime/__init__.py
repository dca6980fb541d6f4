"""Long prompts, prefilled once, answered by hierarchical speculative decoding (TriForce, arXiv 2404.11912).

May import: the standard library, torch, transformers, safetensors, gguf, numpy. Never gradio, fastapi, `ingest` or
`app`: token ids in, events out. Inside, lower never imports higher:
`bench, lossless > engine > session > prefill, drafters > speculation > scorer, audit > models > kv > verify >
(drafter, pacing, sampling, choices) > (config, events, stats, errors)`.
"""
