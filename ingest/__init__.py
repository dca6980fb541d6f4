"""File, folder or archive in, `Document` out: pages of text with where each came from, and flags.

May import: the standard library, pypdf, pypdfium2, charset-normalizer, pathspec. Never torch, gradio,
fastapi, `runtime` or `app`: reading is useful on its own, and untrusted bytes are parsed in a child process
that should start fast and hold nothing of value.
"""
