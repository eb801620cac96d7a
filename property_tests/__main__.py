"""`python -m property_tests`: runs `ssmspec fuzz` from a checkout that is not installed."""

from conformance.main import main

from .cli import app

main(lambda: app, "python -m property_tests")
