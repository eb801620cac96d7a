"""The recurrent layers of Hugging Face transformers, judged as they are installed."""

from .adapter import adapter

__all__ = ["adapter"]
