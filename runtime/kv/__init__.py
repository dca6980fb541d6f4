"""Stores of keys and values behind one protocol: full (on the device, in host memory or on the disk), retrieval,
streaming; and chunk scores as pure functions."""
