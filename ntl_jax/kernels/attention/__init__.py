"""Attention: where the program is chosen (`dispatch`), and the programs."""
