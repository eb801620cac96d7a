"""`python -m conformance`: the suite without the installed command."""

from .cli import app

app()
