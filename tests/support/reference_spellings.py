"""The option names of the reference applications.

A row is one option; an application may have several names for it over all its releases. The first
three rows are options of the programs themselves. The options of tools are listed separately.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """The number of an option, and its names in each application."""

    number: int
    tensorflow: str
    pytorch: str
    popart: str

    def spelled(self, dialect: str) -> list[str]:
        """The names in one application; empty if it has no such option."""
        by_dialect = {"tensorflow": self.tensorflow, "pytorch": self.pytorch, "popart": self.popart}
        return by_dialect[dialect].split()


ROWS = (
    Row(1, "--help", "-h --help", "-h --help"),
    Row(2, "--config", "--config", ""),
    Row(3, "--config-path", "", ""),
    Row(5, "--model", "--model", "--size"),
    Row(6, "--model-size", "", "--size"),
    Row(7, "--convolution-groups", "", ""),
    Row(8, "--group-dim", "--efficientnet-group-dim", ""),
    Row(9, "--expand-ratio", "--efficientnet-expand-ratio", ""),
    Row(10, "--widenet", "", ""),
    Row(11, "", "", "--shortcut-type"),
    Row(12, "--dropout-rate", "", ""),
    Row(13, "--block-survival-prob", "", ""),
    Row(14, "--no-se", "", ""),
    Row(15, "--depth-divisor", "", ""),
    Row(16, "--top-width", "", ""),
    Row(17, "--use-relu", "", ""),
    Row(18, "--width-coefficient", "", ""),
    Row(19, "--depth-coefficient", "", ""),
    Row(20, "--use-bypass", "", ""),
    Row(21, "", "--random-weights", ""),
    Row(22, "", "--input-image-padding", ""),
    Row(23, "--batch-norm --group-norm", "--norm-type", "--norm-type"),
    Row(24, "--groups", "--norm-num-groups", "--norm-groups"),
    Row(25, "--norm-epsilon", "--norm-eps", ""),
    Row(26, "--BN-decay", "--batchnorm-momentum", ""),
    Row(27, "--BN-span", "", ""),
    Row(28, "--stable-norm", "--disable-stable-batchnorm", ""),
    Row(29, "--force-unstable-norm", "", ""),
    Row(30, "", "--enable-fast-groupnorm", ""),
    Row(31, "", "--full-precision-norm", ""),
    Row(32, "--proxy-norm", "", ""),
    Row(33, "--proxy-epsilon", "", ""),
    Row(34, "--no-proxy-recompute", "", ""),
    Row(35, "--dataset", "--data", "--dataset"),
    Row(36, "--data-dir", "--imagenet-data-path", "--data-dir"),
    Row(37, "--generated-data", "--data", "--use-generated-data"),
    Row(38, "--synthetic-data", "--data", ""),
    Row(39, "", "--iterations", ""),
    Row(40, "--image-size", "", ""),
    Row(41, "--standard-imagenet", "", ""),
    Row(42, "--no-dataset-cache", "", ""),
    Row(43, "--pipeline-num-parallel", "--dataloader-worker", "--num-workers"),
    Row(44, "", "--dataloader-rebatch-size", ""),
    Row(45, "--dataset-percentage-to-use", "--webdataset-percentage-to-use", ""),
    Row(46, "", "--webdataset-memory-cache-ratio", ""),
    Row(47, "--eight-bit-io", "--eight-bit-io", ""),
    Row(48, "--hostside-norm --no-hostside-norm", "--normalization-location", ""),
    Row(49, "--normalise-input", "", ""),
    Row(50, "--fused-preprocessing", "", ""),
    Row(51, "--train-with-valid-preprocessing", "", ""),
    Row(52, "", "--use-bbox-info", ""),
    Row(53, "--prefetch-depth", "", ""),
    Row(54, "--dataset-benchmark", "", ""),
    Row(55, "--seed", "--seed", ""),
    Row(56, "--identical-replica-seeding", "", ""),
    Row(57, "--mixup-alpha", "--mixup-alpha", ""),
    Row(58, "--cutmix-lambda", "--cutmix-lambda-low --cutmix-lambda-high", ""),
    Row(59, "--cutmix-version", "", ""),
    Row(60, "", "--cutmix-disable-prob", ""),
    Row(61, "--hostside-image-mixing", "", ""),
    Row(
        62,
        "--batch-size --micro-batch-size",
        "--micro-batch-size --batch-size",
        "--batch-size --replication-factor",
    ),
    Row(
        63,
        "--gradient-accumulation-count --gradients-to-accumulate --pipeline-depth",
        "--gradient-accumulation",
        "--gradient-accumulation-factor",
    ),
    Row(64, "--replicas", "--replicas", "--replication-factor"),
    Row(65, "--epochs", "--epoch", "--epochs"),
    Row(66, "--iterations", "", ""),
    Row(67, "--batches-per-step --device-iterations", "--device-iterations", "--batches-per-step"),
    Row(68, "--base-learning-rate --base-learning-rate-exponent", "", "--base-learning-rate"),
    Row(69, "--abs-learning-rate", "--lr", ""),
    Row(70, "--lr-schedule", "--lr-schedule", ""),
    Row(71, "--learning-rate-schedule", "--lr-epoch-decay", "--learning-rate-schedule"),
    Row(72, "--learning-rate-decay", "--lr-decay", "--learning-rate-decay"),
    Row(73, "--lr-decay-rate --lr-drops", "--lr-decay --lr-scheduler-freq", ""),
    Row(74, "", "--lr-scheduler-freq", ""),
    Row(75, "--warmup-epochs", "--warmup-epoch", ""),
    Row(76, "--poly-lr-decay-power", "", ""),
    Row(
        77,
        "--poly-lr-end-ratio --abs-end-learning-rate --poly-lr-end-lr --poly-lr-initial-lr "
        "--poly-lr-decay-steps",
        "",
        "",
    ),
    Row(78, "--optimiser", "--optimizer", ""),
    Row(79, "--momentum", "--momentum", ""),
    Row(80, "--weight-decay", "--weight-decay", "--weight-decay"),
    Row(81, "--rmsprop-decay", "--rmsprop-decay", ""),
    Row(82, "--rmsprop-base-decay-exp", "", ""),
    Row(83, "--rmsprop-epsilon", "--optimizer-eps", ""),
    Row(84, "--lars-epsilon", "", ""),
    Row(85, "--lars-eeta", "", ""),
    Row(86, "--lars-weight-decay", "", ""),
    Row(87, "--lars-skip-list", "", ""),
    Row(88, "--variable-filter", "", ""),
    Row(89, "--gradient-mean-reduce-re", "", ""),
    Row(90, "", "--loss-velocity-scaling-ratio", ""),
    Row(91, "--label-smoothing", "--label-smoothing", ""),
    Row(92, "--loss-scaling", "--loss-scaling", ""),
    Row(93, "", "--initial-loss-scaling", ""),
    Row(94, "", "--auto-loss-scaling", ""),
    Row(95, "--precision", "--precision", "--precision"),
    Row(96, "--enable-half-partials", "--half-partial", "--half-partials"),
    Row(
        97,
        "--no-stochastic-rounding --stochastic-rounding",
        "--enable-stochastic-rounding",
        "--prng --no-prng",
    ),
    Row(98, "--fp-exceptions", "--enable-fp-exceptions", "--fp-exceptions"),
    Row(99, "--saturate-on-overflow", "", ""),
    Row(100, "--force-weight-to-fp16 --force-weight-to-fp32", "", ""),
    Row(101, "--offload-fp32-weight-copy", "", ""),
    Row(102, "--shards", "", "--num-ipus --replication-factor --shards"),
    Row(103, "", "", "--num-ipus"),
    Row(104, "--pipeline", "", "--pipeline"),
    Row(105, "--pipeline-splits", "--pipeline-splits", ""),
    Row(106, "--pipeline-schedule", "", ""),
    Row(107, "--sharding-include-filter --sharding-exclude-filter", "", ""),
    Row(108, "", "", "--auto-sharding"),
    Row(
        109,
        "--enable-recomputation --xla-recompute",
        "--recompute-mode --enable-recompute",
        "--recompute",
    ),
    Row(110, "", "--recompute-checkpoints", ""),
    Row(111, "--disable-variable-offloading", "--offload-optimizer", ""),
    Row(112, "--min-remote-tensor-size", "", ""),
    Row(113, "--rts", "--enable-optimizer-rts", ""),
    Row(114, "--available-memory-proportion", "--available-memory-proportion", ""),
    Row(115, "--max-cross-replica-buffer-size", "", ""),
    Row(116, "--max-reduce-many-buffer-size", "", ""),
    Row(117, "--distributed", "", ""),
    Row(118, "--syncs-per-epoch", "", ""),
    Row(119, "--epochs-per-sync", "", ""),
    Row(120, "--ckpt-all-instances", "", ""),
    Row(121, "--log-all-instances", "", ""),
    Row(122, "--ckpts-per-epoch", "", ""),
    Row(123, "--epochs-per-ckpt", "--checkpoint-save-freq", ""),
    Row(124, "--ckpt-epochs-offset", "", ""),
    Row(125, "", "--checkpoint-output-dir --checkpoint-path --checkpoint-output-path", "--ckpt"),
    Row(
        126,
        "--restore-path",
        "--checkpoint-input-dir --checkpoint-path --checkpoint-input-path",
        "",
    ),
    Row(127, "--restore-path", "--checkpoint-input-path", ""),
    Row(128, "--init-path", "", ""),
    Row(129, "--wandb-id", "", ""),
    Row(130, "--weight-avg-N", "--weight-avg-strategy --weight-avg-N", ""),
    Row(131, "--weight-avg-exp", "--weight-avg-strategy --weight-avg-exp-decay", ""),
    Row(132, "--filename", "--checkpoint-output-path", ""),
    Row(133, "-N --mode --decay --discard-last", "", ""),
    Row(134, "--no-validation", "--validation-mode", "--no-validation"),
    Row(135, "", "--validation-frequency", "--valid-per-epoch"),
    Row(136, "--valid-batch-size", "", ""),
    Row(137, "--repeat", "", ""),
    Row(138, "--inference", "", ""),
    Row(139, "--total-batch-size", "", ""),
    Row(140, "--latency", "", ""),
    Row(141, "--num-inference-thread", "", ""),
    Row(142, "--force-recompile", "", ""),
    Row(143, "--tmp-execs", "", ""),
    Row(144, "--log-dir", "", "--log-dir"),
    Row(145, "--logs-path", "", ""),
    Row(146, "--name-suffix", "", "--log_dir_string"),
    Row(147, "--logs-per-epoch", "--logs-per-epoch", ""),
    Row(148, "--log-freq", "", "--steps-per-log"),
    Row(149, "--no-logs", "", ""),
    Row(150, "--mlperf-logging", "", ""),
    Row(151, "--wandb", "--wandb", ""),
    Row(152, "--wandb-project", "", ""),
    Row(153, "", "--wandb-weight-histogram", ""),
    Row(154, "", "--disable-metrics", ""),
    Row(155, "--analyse-nans", "", ""),
    Row(156, "--gc-profile --profile", "--profile", "--get-reports --report"),
    Row(157, "--profile-compilation", "", ""),
    Row(158, "--select-ipu", "", ""),
    Row(159, "--on-demand", "", ""),
    Row(160, "--compile-only", "--compile-only", ""),
    Row(161, "", "--offline-target-ipu-version", ""),
    Row(162, "--executable-cache-path", "--model-cache-path", ""),
    Row(163, "--internal-exchange-optimisation-target", "--exchange-memory-target", ""),
    Row(164, "--num-io-tiles", "--num-io-tiles", ""),
    Row(165, "--enable-conv-dithering", "", ""),
    Row(166, "--gather-conv-output", "", ""),
    Row(167, "--only-use-slic-vmac-16", "", ""),
    Row(168, "--scheduling-algorithm", "", ""),
    Row(169, "--gcl-method", "", "--syncless-collectives"),
    Row(170, "--gcl-max-broadcast-size", "", "--max-bytes-per-tile"),
    Row(171, "--poplar-sync-configuration", "", ""),
    Row(172, "", "", "--simulation"),
    Row(173, "", "", "--convolution-options"),
    Row(174, "", "--half-res-training", ""),
    Row(175, "", "--fine-tune-epoch", ""),
    Row(176, "", "--fine-tune-lr", ""),
    Row(177, "", "--fine-tune-micro-batch-size --fine-tune-batch-size", ""),
    Row(178, "", "--fine-tune-gradient-accumulation", ""),
    Row(179, "", "--fine-tune-first-trainable-layer", ""),
)

# Names in the READMEs that no parser accepted.
README_ROWS = (
    Row(190, "--max-ckpts-to-keep", "", ""),
    Row(191, "--select-ipus", "", ""),
    Row(192, "--enable-recompute", "", ""),
    Row(193, "", "--checkpoint-input-path --checkpoint-output-path --enable-recompute", ""),
)

# Abbreviations in the READMEs; a parser accepts unambiguous prefixes (row 4).
PREFIXES = {
    "tensorflow": {
        "--epoch": "--epochs",
        "--pipeline-split": "--pipeline-splits",
        "--eight-bit": "--eight-bit-io",
        "--base-learning-rate": "--base-learning-rate-exponent",
    },
    "pytorch": {"--device-iteration": "--device-iterations"},
}


class Tool(NamedTuple):
    """A program other than training and validation, and the number of its row."""

    number: int
    dialect: str
    program: str
    words: str


TOOLS = (
    Tool(
        180,
        "pytorch",
        "host_benchmark.py",
        "--micro-batch-size --iterations --data --imagenet-data-path --disable-async-loading "
        "--normalization-location --dataloader-worker --eight-bit-io --dataloader-rebatch-size",
    ),
    Tool(182, "pytorch", "validate_dataset.py", "--imagenet-data-path"),
    Tool(
        183,
        "pytorch",
        "create_webdataset.py",
        "--source --target --shuffle --seed --train-preprocess-steps --validation-preprocess-steps "
        "--samples-per-shard --format --image-quality",
    ),
    Tool(184, "pytorch", "distributed_webdataset.py", "--target --num-instances"),
    Tool(
        185,
        "tensorflow",
        "analyse_checkpoints.py",
        "--restore-path --find-nans --first-fail --first-fail-var --first-fail-index",
    ),
    Tool(186, "tensorflow", "upload_run.py", "--base-folder --name --project"),
    Tool(
        187,
        "pytorch",
        "run_benchmark_with_triton_server.py",
        "--model-repository --grpc-port --benchmark_only",
    ),
    Tool(
        188,
        "popart",
        "resnet_synthetic_benchmark.py",
        "--mode --steps --batches-per-step --use-zero-values --save-graph --tensor-tile-mapping "
        "--report-hw-cycle-count --batch-size --log-dir",
    ),
    Tool(
        189,
        "tensorflow",
        "synthetic_benchmark.py",
        "--train --size --norm-type --norm-groups --shortcut-type --batch-size",
    ),
)


def all_spellings(dialect: str) -> set[str]:
    """Every option name of an application, without its tools."""
    return {word for row in (*ROWS, *README_ROWS) for word in row.spelled(dialect)}
