#!/usr/bin/env python3
"""Write the pages that come from the tables: docs/options.md and docs/configs.md.

tools/write_docs.py            writes them
tools/write_docs.py --check    says whether they are up to date
"""

import sys
from pathlib import Path

from convoy.config.fields import Option
from convoy.config.named import SHIPPED, shipped_names
from convoy.config.schema import SECTIONS, option_table
from convoy.config.values import as_words

DOCS = Path(__file__).parent.parent / "docs"


def options_page() -> str:
    """Every option, section by section."""
    parts = ["# Options", "", "Written by `tools/write_docs.py` from `convoy/config/sections/`."]
    for name, section in SECTIONS.items():
        rows = [row for row in option_table().values() if row.section == name]
        parts += ["", f"## {section.__doc__.splitlines()[0].rstrip('.')}", ""]
        parts += ["| option | default | limits | meaning |", "|---|---|---|---|"]
        parts += [_option_row(row) for row in rows]
    parts += [
        "",
        "An option marked ° may change when a run is resumed; any other needs `--override`.",
    ]
    return "\n".join(parts) + "\n"


def _option_row(row: Option) -> str:
    declared = row.declared
    default = "–" if row.default in (None, ()) else " ".join(as_words(row.default))
    also = "".join(f" `{spelling}`" for spelling in declared.also)
    also = f" Also{also}." if also else ""
    env = f" Environment: `{declared.env}`." if declared.env else ""
    limits = str(declared.limit).replace("|", "\\|") or str(row.kind)
    mark = " °" if declared.free else ""
    return f"| `{row.flag}`{mark} | {default} | {limits} | {declared.help}{also}{env} |"


def configs_page() -> str:
    """Every named configuration with its header and its values."""
    parts = [
        "# Named configurations",
        "",
        "Written by `tools/write_docs.py` from `convoy/configs/`.",
    ]
    for name in shipped_names():
        text = (SHIPPED / f"{name}.yaml").read_text()
        parts += ["", f"## {name}", "", "```yaml", text.rstrip(), "```"]
    return "\n".join(parts) + "\n"


PAGES = {"options.md": options_page, "configs.md": configs_page}


def outdated() -> list[str]:
    """The pages that do not say what the tables say."""
    return [
        name
        for name, page in PAGES.items()
        if not (DOCS / name).is_file() or (DOCS / name).read_text() != page()
    ]


def main() -> int:
    if "--check" in sys.argv[1:]:
        for name in outdated():
            print(f"docs/{name} is out of date; run tools/write_docs.py")
        return 1 if outdated() else 0
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
