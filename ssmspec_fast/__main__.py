"""`python -m ssmspec_fast`: runs the subcommand from a checkout that is not installed."""

from .cli.generate import app

app()
