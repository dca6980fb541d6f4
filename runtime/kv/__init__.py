"""Stores of keys and values behind one protocol: full (on the device or in host memory), retrieval, streaming; and
chunk scores as pure functions."""
