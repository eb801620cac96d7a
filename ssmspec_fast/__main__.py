"""`python -m ssmspec_fast`: the subcommand alone, from a bare checkout."""

from .cli import app

app()
