"""The loss curves as a picture: `python -m ssmspec_fast.training.curves FOLDER` draws FOLDER/loss.svg from the log there."""

import sys
from pathlib import Path

from ..cli.refusal import run_command
from . import log

FILE = "loss.svg"


def draw(folder: Path) -> Path:
    """One curve for each run, a dashed line at its loss on held-out files.

    Units: nats a token. Raises: FileNotFoundError, ModuleNotFoundError (matplotlib).
    """
    runs = log.read(folder)
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "loss", "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
        for name, run in runs.items():
            steps, losses = zip(*run["curve"], strict=True)
            (line,) = axes.plot(steps, losses, linewidth=1, label=f"{name}, held out {run['held_out']:.3f}")
            axes.axhline(run["held_out"], color=line.get_color(), linewidth=0.7, linestyle="--")
        axes.set(xlabel="step", ylabel="loss of a batch, nats a token", yscale="log")
        axes.legend(fontsize="small", frameon=False)
        figure.savefig(folder / FILE, metadata={"Date": None})
        pyplot.close(figure)
    return folder / FILE


def main(folder: Path) -> None:
    print(draw(folder))


if __name__ == "__main__":
    sys.exit(run_command(main))
