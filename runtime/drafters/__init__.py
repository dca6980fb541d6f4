"""What can draft: the prompt's own n-grams, a small model, or a scorer that is drafted for itself."""
