"""docs/configs.md: every named configuration as it is."""

from convoy.config.named import SHIPPED, shipped_names


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
