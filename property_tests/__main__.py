"""`python -m property_tests`: runs `ssmspec fuzz` from a checkout that is not installed."""

from .cli import app

app()
