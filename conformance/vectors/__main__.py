"""`python -m conformance.vectors`: generate the vectors again; `--check` only reports whether that changes anything."""

from .generate import main

if __name__ == "__main__":
    import typer

    typer.run(main)
