"""Long prompts, prefilled once, answered by hierarchical speculative decoding (TriForce, arXiv 2404.11912).

May import: the standard library, torch, transformers, safetensors, gguf, llvmlite, numpy, and `assets` for the
catalogue. Never gradio, fastapi, `ingest` or `app`: token ids in, events out. Inside, lower never imports higher:
`bench, lossless > engine, catalogue > loading > parallel, session > stores, prefill, drafters > speculation > scorer,
audit > graphs > models > native, kv > verify > (drafter, pacing, sampling, choices) > (config, events, stats, errors)`.
Where a model runs is decided beside these: `engine, catalogue > memory > ways > footprint, predictions > prefill,
hardware > rates`, shapes in and a plan out.
"""
