"""GPT-2: the decoder-only model of the paper's multiplication experiments."""
