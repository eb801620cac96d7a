"""`python -m conformance.vectors`: make the vectors again; `--check` only says whether that changes anything."""

from .generate import main

if __name__ == "__main__":
    import typer

    typer.run(main)
