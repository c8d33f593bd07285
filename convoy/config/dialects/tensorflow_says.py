"""What becomes of words of the TensorFlow program that are no option as they are."""

from collections.abc import Mapping

SAYS: Mapping[str, str] = {
    "--model": "`--model`, with `--model-size`",
    "--model-size": "`--model`, with the family",
    "--batch-norm": "`--norm-type batch`",
    "--group-norm": "`--norm-type group`; with both, EfficientNet takes batch and the others group",
    "--BN-decay": "`--batchnorm-momentum`: 1 − the share kept, so 0.97 is 0.03; 0 means 0.97",
    "--force-unstable-norm": "`--no-stable-norm`",
    "--dataset": "`--data`; unsaid, the name of the folder tells, or imagenet",
    "--generated-data": "`--data generated` with the samples and classes of the data set",
    "--synthetic-data": "`--data synthetic` with the samples and classes of the data set",
    "--hostside-norm": "`--normalization-location host`",
    "--no-hostside-norm": "`--normalization-location device`",
    "--fused-preprocessing": "`--normalization-location device --input-image-padding`",
    "--cutmix-lambda": "`--cutmix-lambda-low` and `--cutmix-lambda-high`, both this; 1 is off",
    "--cutmix-version": "`--cutmix-version`; unsaid 1",
    "--batch-size": "`--micro-batch-size`",
    "--gradients-to-accumulate": "`--gradient-accumulation`",
    "--pipeline-depth": "`--gradient-accumulation`",
    "--iterations": "`--updates`; exactly so many, where there the last step was filled up",
    "--base-learning-rate": (
        "`--base-learning-rate-exponent`: the rate is 2^N × all samples of an update; 0 "
        "counts as unsaid"
    ),
    "--base-learning-rate-exponent": "`--base-learning-rate-exponent`; 0 counts as unsaid",
    "--lr-schedule": "`--lr-schedule`: stepped is step, polynomial_decay_lr is polynomial",
    "--learning-rate-schedule": "`--lr-share-decay`",
    "--learning-rate-decay": "`--lr-decay`, when the schedule is stepped",
    "--lr-decay-rate": "`--lr-decay`, when the schedule is exponential",
    "--lr-drops": "`--lr-drops`, when the schedule is exponential",
    "--poly-lr-decay-steps": "nothing: polynomial ends with the run",
    "--optimiser": (
        "`--optimizer` and `--momentum`: SGD has none, momentum is sgd_combined, RMSprop is "
        "rmsprop_tf"
    ),
    "--momentum": "`--momentum`, unless the optimizer is SGD",
    "--label-smoothing": "`--label-smoothing` with `--label-smoothing-over others`",
    "--stochastic-rounding": (
        "`--enable-stochastic-rounding`, off for OFF; replicas agree in any mode"
    ),
    "--pipeline": "`--shards` above 1; with 1, stages take turns: `--pipeline-schedule sequential`",
    "--available-memory-proportion": (
        "`--available-memory-proportion`; of two values a stage the first"
    ),
    "--distributed": "nothing by itself: TF_CONFIG gives the instances",
    "--restore-path": "the run or checkpoint behind `convoy resume`, `validate` or `average`",
    "--weight-avg-N": (
        "`--weight-avg-strategy mean --weight-avg-n`: N epochs back are N × checkpoints "
        "per epoch + 1"
    ),
    "--weight-avg-exp": "`--weight-avg-strategy exponential --weight-avg-exp-decay`",
    "--discard-last": "refused above 0",
    "--no-validation": "`--validation-mode none`",
    "--gc-profile": "`--profile`, unless NO_PROFILE",
    "--dataset-benchmark": "`convoy data bench`: no training, its data alone",
    "--select-ipu": "`--select-devices`; AUTO is unset",
    "--select-ipus": "`--select-devices`; AUTO is unset",
}
