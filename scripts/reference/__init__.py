"""The pages of docs/reference that the code writes. `PYTHONPATH=scripts python -m reference` writes them anew."""
