"""The configuration of a run that goes on: what it was, and what may be changed now."""

from pathlib import Path

from convoy.config.layers import Setting
from convoy.config.named import read_settings
from convoy.config.problems import Problem, refuse
from convoy.config.resolve import Asked, Resolved, resolve
from convoy.config.schema import option_table
from convoy.config.written import changed
from convoy.errors import ConfigError

# A wish for one part of a run only.
MOMENTARY = ("stop_after",)
# What is decided when a run starts.
SETTLED = {
    **dict.fromkeys(
        ("checkpoint_output_path", "log_dir", "name", "name_suffix"), "a run stays in its folder"
    ),
    **dict.fromkeys(("init_path", "pretrained"), "a run goes on with its own weights"),
}


def settings_of_run(config: Path) -> dict[str, Setting]:
    """What a run's `config.yaml` says."""
    if not config.is_file():
        raise ConfigError(f"{config.parent} holds no run: there is no {config.name}")
    settings, problems = read_settings(config)
    refuse(problems)
    return {name: one for name, one in settings.items() if name not in MOMENTARY}


def resolve_resumed(
    before: dict[str, Setting],
    given: dict[str, Setting],
    problems: list[Problem],
    override: bool,
) -> Resolved:
    """The run's own values under those given now; a change of the training must be meant."""
    problems = [
        *problems,
        *(
            Problem(option_table()[name].flag, f"cannot be given: {why}")
            for name, why in SETTLED.items()
            if name in given
        ),
    ]
    resolved = resolve(Asked(given, before, problems, environment={}))
    differences = changed(before, resolved.settings)
    if differences and not override:
        raise ConfigError(
            f"this would be another training: {'; '.join(differences)}; "
            "leave it out, or add --override to go on with the change"
        )
    return resolved
