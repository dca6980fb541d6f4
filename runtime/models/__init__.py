"""Where a model comes from, what it is, and its forward pass.

May import torch, transformers, safetensors, gguf and huggingface_hub; of runtime only `kv`, `config`,
`events`, `stats` and `errors`. Finding and fetching (`sources`, `starter`, `hub`, `transfer`) imports no
torch, so that a first start can fetch the model before anything heavy is loaded.
"""
