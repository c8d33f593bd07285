"""Options that do not fit a network are reported in one line, with a fix."""

import pytest
from support.run_convoy import convoy


@pytest.mark.parametrize(
    ("words", "message"),
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
            "the 56 channels of blocks/0/0/conv_dw into 3 equal groups; try 12",
        ),
        (
            "--model resnext50 --data generated --cardinality 10",
            "--cardinality 10 × --group-dim 4 = 40 is not a multiple of the 64 stem channels; "
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
            "'blocks/9/0' is not a layer of this model; did you mean blocks/",
        ),
    ],
)
def test_options_that_do_not_fit_the_network_are_refused_in_one_line(
    words: str, message: str
) -> None:
    result = convoy("plan", *words.split())

    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1 and "Traceback" not in result.err
