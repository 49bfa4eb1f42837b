"""Which figures a study has, each as SVG and PNG.

Drawn without pyplot, so nothing of one figure is left in the next; the same study gives the same SVG.
"""

import io
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from analysis import against, plots
from analysis.study import Study
from config import UserError
from storage import files

FIGURES = {  # name of the file -> what draws it, what it shows
    "curves": (plots.curves, "Learning curves of every seed, each swap against the baseline"),
    "forest": (plots.forest, "Difference of each swap to the baseline with its 95% interval"),
    "steps": (plots.steps, "Difference of each swap to the baseline at each checkpoint"),
    "axis": (against.axis, "Difference of each swap to the baseline against the other swept value"),
    "cache": (against.cache, "Final bits per byte against the key/value cache of a symbol"),
}
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "axes.grid": True,
    "grid.color": "#eeeeee",
    "axes.axisbelow": True,
    "text.parse_math": False,  # a dollar sign in a label is a dollar sign
    "svg.hashsalt": "oneswap",
}


def draw(study: Study, folder: Path) -> list[Path]:
    """Writes each figure for which there are numbers, removes the others. Returns the PNG files."""
    made = []
    for name, (figure, _) in FIGURES.items():
        paths = [folder / f"{name}.{kind}" for kind in ("svg", "png")]
        try:
            with matplotlib.rc_context(STYLE):
                save(figure(study), paths)
            made.append(paths[1])
        except UserError:
            for path in paths:
                path.unlink(missing_ok=True)
    return made


def save(figure: Figure, paths: list[Path]) -> None:
    figure.get_layout_engine().execute(figure)  # once for all formats: it is the slow part
    figure.set_layout_engine("none")
    for path in paths:
        out, kind = io.BytesIO(), path.suffix[1:]
        figure.savefig(out, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else {"Software": None})
        files.save(path, out.getvalue())
