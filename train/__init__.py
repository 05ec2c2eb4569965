"""Training of number-aware language models: `python -m train PRESET`."""
