"""Granite, dense and mixture of experts."""
