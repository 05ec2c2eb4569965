"""Number tokens, numbers in text, and their values."""
