"""`python -m property_tests`: `ssmspec fuzz` from a bare checkout."""

from .cli import app

app()
