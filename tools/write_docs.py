#!/usr/bin/env python3
"""Generate pages, the schema for editors and shell completion from the option and model tables.

tools/write_docs.py            write the files
tools/write_docs.py --check    check whether they are up to date
"""

import sys
from pathlib import Path

from pages.api import api_page
from pages.bash import bash_script
from pages.coming_from_ipu import coming_from_ipu_page
from pages.configs import configs_page
from pages.fish import fish_script
from pages.keywords import keywords_module
from pages.models import models_page
from pages.options import options_page, schema_file
from pages.schedules import schedules_image
from pages.zsh import zsh_script

ROOT = Path(__file__).parent.parent

FILES = {
    "docs/api.md": api_page,
    "docs/options.md": options_page,
    "docs/configs.md": configs_page,
    "docs/models.md": models_page,
    "docs/coming-from-ipu.md": coming_from_ipu_page,
    "docs/convoy.schema.json": schema_file,
    "docs/images/schedules.svg": schedules_image,
    "convoy/api/keywords.py": keywords_module,
    "convoy/completions/convoy.bash": bash_script,
    "convoy/completions/_convoy": zsh_script,
    "convoy/completions/convoy.fish": fish_script,
}


def outdated() -> list[str]:
    """The files that differ from what would be written."""
    return [
        name
        for name, content in FILES.items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text(encoding="utf-8") != content()
    ]


def main() -> int:
    if "--check" in sys.argv[1:]:
        names = outdated()
        for name in names:
            print(f"{name} is out of date; run tools/write_docs.py")
        return 1 if names else 0
    for name, content in FILES.items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(content(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
