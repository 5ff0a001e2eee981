"""Weights in fewer bits, and the products that read them."""
