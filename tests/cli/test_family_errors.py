"""What does not fit a network, as a user meets it: one line, with the way out."""

import pytest
from running import convoy


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--model efficientnet-b8",
            "--model 'efficientnet-b8' is unknown; did you mean efficientnet-b7, "
            "efficientnet-b6, efficientnet-b5?",
        ),
        (
            "--model mobilenet-v3-larg --data generated",
            "did you mean mobilenet-v3-large",
        ),
        (
            "--model efficientnet-b6 --data generated --group-dim 16",
            "--group-dim 16 would cut the 56 channels of blocks/0/0/conv_dw into 3 groups, which "
            "they do not divide into; try 12",
        ),
        (
            "--model resnext50 --data generated --cardinality 10",
            "--cardinality 10 × --group-dim 4 = 40 is no multiple of the 64 channels of the stem; "
            "--group-dim 64 always is",
        ),
        (
            "--model efficientnet-b0 --data generated --norm-type group --norm-num-groups 5",
            "--norm-num-groups 5 does not divide the 32 channels of bn1; try 4",
        ),
        (
            "--model squeezenet --data generated --image-size 20",
            "--image-size 20 is too small: ",
        ),
        (
            "--model efficientnet-b0 --data generated --gradient-accumulation 4 "
            "--pipeline-splits blocks/9/0",
            "'blocks/9/0' is no layer of this model; did you mean blocks/",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(words: str, said: str) -> None:
    result = convoy("plan", *words.split())

    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert result.err.count("\n") == 1 and "Traceback" not in result.err
