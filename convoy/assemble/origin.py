"""Whether a checkpoint belongs to the training that shall go on from it."""

from dataclasses import dataclass

from convoy.checkpoint.strict_json import JSON
from convoy.config.layers import Setting
from convoy.config.resolve import Resolved
from convoy.config.schema import option_table
from convoy.config.values import WrongType, spelled
from convoy.config.written import changed
from convoy.errors import CheckpointError
from convoy.events import Event, Noticed


@dataclass(frozen=True)
class Origin:
    """What a training is made of: options and data, and the machine its bits are promised for."""

    facts: dict[str, JSON]
    machine: dict[str, JSON]


def same_training(
    state: dict[str, JSON], resolved: Resolved, origin: Origin, override: bool
) -> list[Event]:
    """Refuse another training unless it is meant; what differs and is allowed is told."""
    update = state.get("update")
    at = update if isinstance(update, int) else 0
    differences = changed(_options(state.get("options")), resolved.settings)
    if state.get("data_sha256") not in (None, origin.facts["data_sha256"]):
        differences.append("the training data are others")
    _refuse_other_state(_options(state.get("options")), resolved)
    if differences and not override:
        raise CheckpointError(
            f"the checkpoint belongs to another training: {'; '.join(differences)}; "
            "give the run its own back, or add --override to go on with the change"
        )
    notices: list[Event] = [Noticed("override", text, at) for text in differences]
    if state.get("machine") not in (None, origin.machine):
        before, now = state.get("machine"), origin.machine
        text = f"the bits may differ from here on: saved on {before}, now on {now}"
        notices.append(Noticed("other_machine", text, at))
    return notices


def _refuse_other_state(saved: dict[str, Setting], resolved: Resolved) -> None:
    """Names of slots may be the same, but not what lies in them."""
    for name in ("optimizer", "loss_velocity_scaling_ratio"):
        before, now = saved.get(name), resolved.settings[name]
        if before is not None and before.value != now.value:
            flag = option_table()[name].flag
            raise CheckpointError(
                f"the optimizer's state was kept with {flag} {spelled(before.value)}, and means "
                f"something else with {spelled(now.value)}; go on with the former, or begin a new "
                "run with --init-path"
            )


def _options(saved: JSON) -> dict[str, Setting]:
    """The options a checkpoint was trained with, as far as this version knows them."""
    if not isinstance(saved, dict):
        return {}
    table = option_table()
    try:
        return {
            name: Setting(table[name].kind.check(value), "checkpoint")
            for name, value in saved.items()
            if name in table
        }
    except WrongType as wrong:
        raise CheckpointError(f"state.json holds options that are none: {wrong}") from None
