"""A word that a dialect does not know: another one may, and says how it is said here."""

import pytest
from spoken_words import problems

from convoy.config.dialects.all import DIALECTS, elsewhere

TF = "is an option of the tensorflow dialect"
PA = "is an option of the popart dialect"
PT = "is an option of the pytorch dialect"
OURS = "is an option of the convoy dialect"


@pytest.mark.parametrize(
    ("here", "word", "told"),
    [
        # the same option under another name
        ("pytorch", "--abs-learning-rate", f"{TF}; here it is --lr"),
        ("pytorch", "--optimiser-momentum", None),
        ("tensorflow", "--lr", f"{OURS}; here it is --abs-learning-rate"),
        ("tensorflow", "--checkpoint-output-dir", f"{PT}; here it is --logs-path"),
        ("popart", "--replicas", f"{OURS}; here it is --replication-factor"),
        ("popart", "--loss-scaling", OURS),
        ("tensorflow", "--replication-factor", f"{PA}; here it is --replicas"),
        ("popart", "--no-stochastic-rounding", f"{TF}; here it is --no-prng"),
        (
            "tensorflow",
            "--prng",  # and not the switch that says the opposite
            f"{PA}; here it is --stochastic-rounding (`--enable-stochastic-rounding`, off for OFF; "
            "replicas agree in any mode)",
        ),
        # the same option, counted in another way
        (
            "pytorch",
            "--BN-decay",
            f"{TF}; here it is `--batchnorm-momentum`: 1 − the share kept, so 0.97 is 0.03; "
            "0 means 0.97",
        ),
        (
            "tensorflow",
            "--batchnorm-momentum",
            f"{OURS}; here it is --BN-decay (`--batchnorm-momentum`: 1 − the share kept, so 0.97 "
            "is 0.03; 0 means 0.97)",
        ),
        (
            "popart",
            "--lr",
            f"{OURS}; here it is --base-learning-rate (`--lr`: 2^N × `--batch-size`, "
            "accumulation left out)",
        ),
        # a part of what is one option here
        ("convoy", "--model-size", f"{TF}; here it is `--model`, with the family"),
        ("pytorch", "--num-ipus", f"{PA}; here it is `--shards` × replicas: all devices together"),
        (
            "convoy",
            "--iterations",
            f"{PT}; here it is `--samples` of made data: loader steps × all samples of one",
        ),
        # one option there, a part or a switch here
        ("tensorflow", "--norm-type", f"{OURS}; here it is --batch-norm (`--norm-type batch`)"),
        (
            "tensorflow",
            "--optimizer",
            f"{OURS}; here it is --optimiser (`--optimizer` and `--momentum`: SGD has none, "
            "momentum is sgd_combined, RMSprop is rmsprop_tf)",
        ),
        # nothing like it here
        ("pytorch", "--standard-imagenet", TF),
        ("popart", "--iterations", PT),
        ("tensorflow", "--num-ipus", PA),
        # nobody's
        ("pytorch", "--lrr", None),
        ("tensorflow", "--pipeline-splitz", None),
        ("popart", "-x", None),
    ],
)
def test_another_dialect_is_named_with_the_way_it_is_said_here(
    here: str, word: str, told: str | None
) -> None:
    found = elsewhere(word, DIALECTS[here]())

    assert found == told


def words_of_others(dialect: str) -> set[str]:
    others = [other() for name, other in DIALECTS.items() if name != dialect]
    return {word for other in others for word in other.by_spelling}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_foreign_word_is_sent_where_it_belongs(dialect: str) -> None:
    spoken = DIALECTS[dialect]()
    foreign = words_of_others(dialect) - set(spoken.by_spelling)

    assert foreign
    assert [word for word in foreign if elsewhere(word, spoken) is None] == []


@pytest.mark.parametrize("dialect", ["tensorflow", "popart", "pytorch"])
def test_no_dialect_sends_its_own_words_elsewhere(dialect: str) -> None:
    spoken = DIALECTS[dialect]()
    own = set(spoken.by_spelling) - words_of_others(dialect)

    assert own
    assert [word for word in own if elsewhere(word, spoken) is not None] == []


@pytest.mark.parametrize(
    ("dialect", "line", "told"),
    [
        ("tensorflow", "--modle resnet", "unknown option --modle; did you mean --mode, --model"),
        ("pytorch", "--optimzer sgd", "unknown option --optimzer; did you mean --optimizer"),
        ("popart", "--num-ipu 4", None),  # a unique prefix
        ("popart", "--num-gpus 4", "unknown option --num-gpus; did you mean --num-ipus"),
        ("pytorch", "--BN-decay 0.97", f"--BN-decay {TF}; here it is `--batchnorm-momentum`"),
        (
            "tensorflow",
            "--lr 0.1",
            "option --lr is ambiguous: it could be --lr-schedule, --lr-decay-rate, --lr-drops; "
            f"--lr itself {OURS}; here it is --abs-learning-rate",
        ),
        ("tensorflow", "--momentun 0.1", "unknown option --momentun; did you mean --momentum"),
        ("tensorflow", "--norm-type group", f"--norm-type {OURS}; here it is --batch-norm"),
        ("pytorch", "--size 50", f"--size {PA}; here it is `--model`: 50 is resnet50"),
        ("tensorflow", "--pipeline-s 2", "option --pipeline-s is ambiguous: it could be"),
    ],
)
def test_an_unknown_word_is_told_with_a_way_out(dialect: str, line: str, told: str | None) -> None:
    found = problems(dialect, line)

    assert (found == []) == (told is None)
    assert told is None or found[0].startswith(told)
