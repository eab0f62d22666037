"""What the SGLang image's Python finds beside the standard library. Put on PYTHONPATH, never imported by this name."""
