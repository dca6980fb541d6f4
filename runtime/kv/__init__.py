"""Stores of keys and values behind one protocol: full, retrieval, streaming; and chunk scores as pure functions."""
