"""How to install what a command lacks."""


def installing(extra: str) -> str:
    """The command that installs an extra of ssmspec from its folder; the package is not published."""
    return f"install ssmspec's extra {extra}, such as pip install '../ssmspec[{extra}]'"
