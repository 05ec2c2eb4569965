"""T5: the encoder-decoder of the paper's text experiments."""
