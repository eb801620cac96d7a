"""The README's picture: the matrix of a real report, as an SVG that loads no font and no script.

ssmspec conform run --adapter transformers --subject 'qwen3*' --tier smoke --report R
python -m tests.docs.picture R docs/pictures/qwen3.svg
"""

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from conformance.report.matrix import matrix
from conformance.report.stream import read_report

COMMAND = "ssmspec conform run --adapter transformers --subject 'qwen3*' --tier smoke"
SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="matrix of a report">
<style>{styles} .{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; }}</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""
"""Rich's own frame without the font that it would fetch."""


def drawn(report: Path) -> str:
    """The matrix of a report's folder, below the command that made it."""
    console = Console(record=True, width=82, file=io.StringIO(), force_terminal=True)
    console.print(f"$ {COMMAND}", style="bold", highlight=False, markup=False, soft_wrap=True)
    console.print(matrix(read_report(report / "report.jsonl").results, console))
    return console.export_svg(title="", theme=MONOKAI, code_format=SVG, unique_id="ssmspec")


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(drawn(Path(sys.argv[1])), encoding="utf-8")
