"""Words and pages of the documentation site by part of its navigation, as `wc -w` counts them; notes are no part of it.

    python scripts/count_words.py [--pages]
"""

from __future__ import annotations

import importlib.util
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"


def words(page: pathlib.Path) -> int:
    text = page.read_text()
    if page.suffix == ".ipynb":
        spec = importlib.util.spec_from_file_location("notebooks", DOCS / "notebooks.py")
        notebooks = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(notebooks)
        text = notebooks.as_markdown(text)
    return len(text.split())


def main() -> None:
    sys.path.insert(0, str(DOCS))
    import conf

    pages = {
        path.relative_to(DOCS).with_suffix("").as_posix(): words(path)
        for kind in ("md", "ipynb")
        for path in sorted(DOCS.rglob(f"*.{kind}"))
        if path.relative_to(DOCS).parts[0] != "notes"
    }
    for part, names in {"Index": ["index"], **conf.navigation(sorted(pages))}.items():
        print(f"{part:12s} {len(names):3d} pages {sum(pages[name] for name in names):7,d} words")
        if "--pages" in sys.argv:
            for name in names:
                print(f"    {pages[name]:6,d} {name}")
    print(f"{'all':12s} {len(pages):3d} pages {sum(pages.values()):7,d} words")


if __name__ == "__main__":
    main()
