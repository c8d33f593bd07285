"""convoy run: every command of the READMEs, as written."""

import shlex
from pathlib import Path

import pytest
from support.dry_runs import Meaning, dry, readme_row, refusals, repeated, values
from support.readme_commands import ROWS, Row
from support.readme_plans import PLANS, Figures
from support.run_convoy import convoy

ROWS_WITH_PLANS = [(row, plan) for row, plan in zip(ROWS, PLANS, strict=True) if plan is not None]


@pytest.fixture(autouse=True)
def _empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty directory, so that no file of the user is found."""
    monkeypatch.chdir(tmp_path)


def plan_figures(plan: Meaning) -> Figures:
    return Figures(
        plan["model"],
        plan["data"],
        plan["batch"]["samples_per_update"],
        len(plan["stages"]),
        plan["topology"]["replicas"],
        plan["learning_rate"]["base"],
        plan["updates"]["epochs"],
    )


def test_the_number_of_commands_is_as_expected() -> None:
    assert (len(ROWS), len(ROWS_WITH_PLANS)) == (54, 43)


@pytest.mark.parametrize(("row", "expected"), ROWS_WITH_PLANS)
def test_a_command_has_the_same_plan_as_in_its_application(row: Row, expected: Figures) -> None:
    description = dry(row.line)
    verb = "validate" if "valid" in description["program"] else "train"

    assert plan_figures(description["plan"]) == expected
    assert description["dialect"] == row.dialect
    assert description["program"] == Path(row.program.split()[1]).name
    assert shlex.split(description["command"])[:2] == ["convoy", verb]
    # The canonical command sets exactly the same options.
    assert repeated(description, target="RUN") == values(description["plan"])
    assert_every_option_is_reported(row, description)


def test_an_option_without_its_value_is_reported_by_name() -> None:
    (message,) = refusals(readme_row("--ipus-per-replica --mpi-local-args").line)

    assert message.startswith("--ipus-per-replica needs a value")


def test_python_without_a_program_is_refused_with_the_reason() -> None:
    (message,) = refusals(readme_row("python3 --config").line)

    assert message.startswith("python3 is followed by --config")
    assert "`convoy run -- python3 train.py --config NAME`" in message


@pytest.mark.parametrize("row", [row for row in ROWS if "my_config" in row.arguments])
def test_an_unknown_configuration_is_reported(row: Row) -> None:
    (message,) = refusals(row.line)

    assert message.startswith("--config 'my_config' is not a shipped configuration")
    assert "configs.yml" in message and "`convoy configs`" in message


def test_an_unknown_benchmark_is_reported_by_name() -> None:
    (message,) = refusals(readme_row("--benchmark NAME").line)

    assert message.startswith(
        "--benchmark 'NAME' is unknown; choose from G16_EfficientNet_B4_pipelined"
    )
    assert message.endswith(", …") and message.count("G16_") == 1


def test_help_of_the_dialect_is_printed() -> None:
    result = convoy("run", "--", *shlex.split(readme_row("--help").line))

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("usage: train.py ")
    assert "--model-size" in result.out and "--optimiser" in result.out


def test_a_cluster_is_counted_in_processes_and_hosts() -> None:
    topology = dry(readme_row("mpirun", "TF_CONFIG").line)["plan"]["topology"]
    large_topology = dry(readme_row("--num-replicas=16 --num-instances=16").line)["plan"][
        "topology"
    ]

    assert topology == {"hosts": 2, "instances": 2, "replicas": 2, "stages": 1, "processes": 2}
    assert large_topology == {
        "hosts": 4,
        "instances": 16,
        "replicas": 16,
        "stages": 4,
        "processes": 64,
    }


def assert_every_option_is_reported(row: Row, description: Meaning) -> None:
    """Every option is mapped or dropped."""
    reported = [entry["word"] for entry in description["mapped"] + description["dropped"]]
    typed = [word.partition("=")[0] for word in shlex.split(row.arguments) if word.startswith("--")]
    unreported = [word for word in typed if not any(entry.startswith(word) for entry in reported)]
    dropped = [entry["word"] for entry in description["dropped"]]

    assert set(unreported) <= {"--config", "--restore-path"}
    assert len(dropped) == len(set(dropped))
