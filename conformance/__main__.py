"""`python -m conformance`: the suite without the installed command."""

from .cli import app
from .main import main

main(lambda: app, "python -m conformance")
