"""This module finds the links of a page to the other files of its folder, and between a comparison and its runs.

A page names only files that exist when it is written. So each page that is written also renews the links of those that
it is linked with.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from grpo.config.folder import (
    CODE_FILE,
    COMPLETIONS_FOLDER,
    CONFIG_FILE,
    DYNAMICS_PAGE_FILE,
    EVALUATIONS_FILE,
    METRICS_FILE,
    MODEL_FOLDER,
    PAGE_FILE,
    PATCH_FILE,
    PICTURE_FILE,
    PLAN_PAGE_FILE,
    RATES_FILE,
    RATES_PAGE_FILE,
    REPORT_FILE,
    SAMPLES_FILE,
    WHATIF_PAGE_FILE,
)
from grpo.config.start import run_name
from grpo.host.disk import write_whole

# The pages of a folder, each with what it shows.
PAGES = {
    PAGE_FILE: "report",
    DYNAMICS_PAGE_FILE: "dynamics and forecast",
    WHATIF_PAGE_FILE: "what if",
    RATES_PAGE_FILE: "solve rates",
    PLAN_PAGE_FILE: "plan",
}
FILES = (
    *(CONFIG_FILE, CODE_FILE, PATCH_FILE, METRICS_FILE, EVALUATIONS_FILE, SAMPLES_FILE, COMPLETIONS_FOLDER),
    *(REPORT_FILE, PICTURE_FILE, RATES_FILE, MODEL_FOLDER),
)
_NAVIGATION = re.compile(r"<nav\b.*?</nav>", re.DOTALL)


class Link(NamedTuple):
    """A link has the address of a file, relative to the page, and a name."""

    address: str
    name: str


def links_of(page: Path) -> dict[str, list[Link]]:
    """Returns the links of a page by kind: other pages and files of its folder, and comparisons that show its run."""
    folder = page.parent
    kinds = {
        "Pages": [
            Link(quote(name), text) for name, text in PAGES.items() if name != page.name and (folder / name).exists()
        ],
        "Compared in": [Link(_address(other, folder), run_name(other.parent)) for other in _comparisons(folder)],
        "Files": [Link(quote(name), name) for name in FILES if (folder / name).exists()],
    }
    return {kind: links for kind, links in kinds.items() if links}


def links_to(runs: Sequence[Path], folder: Path) -> list[Link]:
    """Returns links from a page in `folder` to the reports of runs that have one."""
    return [Link(_address(run / PAGE_FILE, folder), run_name(run)) for run in runs if (run / PAGE_FILE).exists()]


def renew(page: Path, navigation: str) -> None:
    """Replaces the links of a page that exists by `navigation`, a `nav` element."""
    text = page.read_text(errors="backslashreplace")
    renewed_text = _NAVIGATION.sub(lambda _: navigation, text, count=1)
    if renewed_text != text:
        write_whole(page, renewed_text, "backslashreplace")


def linked_with(page: Path, runs: Sequence[Path] = ()) -> list[Path]:
    """Returns the existing pages whose links may have changed when `page` was written: those of its folder, and those
    of the folders `runs` that it compares."""
    beside = [page.parent / name for name in PAGES if name != page.name]
    of_runs = [run / name for run in runs for name in (PAGE_FILE, DYNAMICS_PAGE_FILE, WHATIF_PAGE_FILE)]
    return [other for other in (*beside, *of_runs) if other.exists()]


def _address(file: Path, folder: Path) -> str:
    return quote(Path(os.path.relpath(file, folder)).as_posix())


def _comparisons(folder: Path) -> Iterator[Path]:
    """Yields the comparisons in the two folders above that link to the report in `folder`."""
    for above in (folder.absolute().parent, folder.absolute().parent.parent):
        page = above / PAGE_FILE
        if page.exists() and f'href="{_address(folder / PAGE_FILE, above)}"' in page.read_text(errors="replace"):
            yield page
