"""What a model answers with: text, one number, or numbers filled into a text."""
