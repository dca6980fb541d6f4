"""Loops for a CPU that PyTorch has no fast kernel for, compiled when a model is loaded."""
