"""The recurrent layers of the installed Hugging Face transformers."""

from .subjects import adapter

__all__ = ["adapter"]
