"""Answers from a server that runs already, over its OpenAI-compatible endpoint (`--engine URL`).

The same surface as `runtime.engine`: facts, tokenizer, answers as events. Cut apart because it needs no model here: it
imports no torch (transformers does, once it reads a tokenizer), and contacts the one address the person named.
"""
