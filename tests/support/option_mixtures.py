"""Options of the three programs; any combination with at most one of each row is valid."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

TENSORFLOW = [
    # model and dataset
    [
        "--dataset imagenet",
        "--dataset cifar-10",
        "--dataset imagenet --model-size 50",
        "--dataset cifar-100 --model resnet --model-size 14",
        "--dataset cifar-10 --model resnext --model-size 29 --widenet",
        "--data-dir /data/imagenet --model efficientnet --model-size 3",
        "--data-dir /data/cifar100 --model efficientnet --model-size cifar",
        "--dataset imagenet --model squeezenet --use-bypass",
        "--dataset cifar-10 --generated-data --model resnet --model-size 8",
        "--dataset imagenet --synthetic-data --model resnext --model-size 101 --image-size 64",
    ],
    ["--batch-norm", "--group-norm", "--batch-norm --group-norm", "--batch-norm --BN-decay 0.9"],
    ["--groups 8"],
    ["--norm-epsilon 0.01"],
    ["--stable-norm", "--force-unstable-norm"],
    ["--convolution-groups 16", "--group-dim 8", "--expand-ratio 4"],
    ["--dropout-rate 0.3", "--no-se", "--depth-divisor 4", "--top-width 640", "--use-relu"],
    ["--block-survival-prob 0.7", "--width-coefficient 1.1", "--depth-coefficient 1.2"],
    ["--proxy-norm --proxy-epsilon 0.1", "--no-proxy-recompute"],
    ["--no-dataset-cache", "--pipeline-num-parallel 8", "--dataset-percentage-to-use 50"],
    ["--eight-bit-io", "--hostside-norm", "--normalise-input", "--fused-preprocessing"],
    ["--train-with-valid-preprocessing", "--prefetch-depth 2", "--standard-imagenet"],
    ["--seed 3", "--seed 0"],
    ["--mixup-alpha 0.2", "--cutmix-lambda 0.85", "--cutmix-lambda 1 --hostside-image-mixing"],
    ["--batch-size 8", "--micro-batch-size 6"],
    ["--gradient-accumulation-count 16", "--gradients-to-accumulate 8", "--pipeline-depth 32"],
    ["--replicas 2", "--replicas 4"],
    ["--epochs 12.5", "--epoch 3", "--iterations 700", "--iterations 9 --epochs 3 --log-freq 2"],
    ["--batches-per-step 10", "--device-iterations 4"],
    ["--base-learning-rate -9", "--base-learning-rate-exponent -9.5", "--base-learning-rate 0"],
    ["--lr-schedule stepped", "--lr-schedule cosine", "--lr-schedule exponential"],
    ["--learning-rate-schedule 0.25,0.5", "--learning-rate-decay 0.2", "--lr-decay-rate 0.9"],
    ["--lr-drops 20", "--warmup-epochs 2"],
    ["--poly-lr-decay-power 1", "--poly-lr-end-ratio 0.1", "--abs-end-learning-rate 0.001"],
    ["--optimiser SGD", "--optimiser momentum", "--optimiser RMSprop", "--optimiser LARS"],
    ["--momentum 0.8", "--momentum 0"],
    ["--weight-decay 0.001", "--lars-weight-decay 0.01", "--lars-skip-list beta gamma"],
    ["--rmsprop-decay 0.9", "--rmsprop-base-decay-exp -12", "--rmsprop-epsilon 0.01"],
    ["--variable-filter fc layer4", "--gradient-mean-reduce-re .* a.b"],
    ["--label-smoothing 0.1", "--label-smoothing 0"],
    ["--loss-scaling 256"],
    ["--precision 16.32", "--precision 32.32"],
    ["--enable-half-partials", "--fp-exceptions", "--saturate-on-overflow"],
    [
        "--no-stochastic-rounding",
        "--stochastic-rounding OFF",
        "--stochastic-rounding RI_prng_stable",
    ],
    ["--force-weight-to-fp16 fc", "--force-weight-to-fp32 fc bn", "--offload-fp32-weight-copy"],
    [
        "--shards 2 --pipeline",
        "--shards 2 --pipeline --pipeline-splits b2/0/relu --pipeline-schedule Grouped",
        "--shards 1 --pipeline --pipeline-splits b1/0/relu b2/0/relu",
        "--shards 4 --pipeline --pipeline-schedule Interleaved --available-memory-proportion "
        "0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8",
    ],
    ["--enable-recomputation", "--xla-recompute", "--enable-recompute"],
    ["--disable-variable-offloading", "--rts", "--min-remote-tensor-size 64"],
    ["--max-cross-replica-buffer-size 1000000", "--max-reduce-many-buffer-size 100"],
    ["--distributed", "--syncs-per-epoch 2", "--ckpt-all-instances yes"],
    ["--ckpts-per-epoch 0", "--ckpts-per-epoch 3", "--epochs-per-ckpt 2", "--ckpt-epochs-offset 1"],
    ["--max-ckpts-to-keep 5", "--init-path weights"],
    ["--weight-avg-N 3 5", "--weight-avg-exp 0.97"],
    ["--no-validation", "--valid-batch-size 50", "--latency"],
    ["--log-dir here", "--logs-path there", "--name-suffix one", "--no-logs"],
    ["--logs-per-epoch 2", "--log-freq 10"],
    ["--wandb", "--wandb --wandb-project mine", "--mlperf-logging", "--analyse-nans"],
    ["--gc-profile", "--gc-profile NO_PROFILE", "--profile"],
    ["--select-ipu AUTO", "--select-ipus 1", "--on-demand", "--compile-only"],
    ["--executable-cache-path cache", "--internal-exchange-optimisation-target memory"],
    ["--num-io-tiles 32", "--enable-conv-dithering", "--gather-conv-output"],
    ["--only-use-slic-vmac-16", "--scheduling-algorithm clustering", "--gcl-method broadcast"],
]

PYTORCH = [
    ["--model resnet50 --data imagenet", "--model resnet18 --data generated --iterations 7"],
    ["--micro-batch-size 4", "--micro-batch-size 6 --mixup-alpha 0.2", "--batch-size 8"],
    ["--gradient-accumulation 4", "--replicas 4", "--device-iterations 3"],
    ["--pipeline-splits layer2/0 layer3/0", "--pipeline-splits"],
    ["--recompute-mode none", "--recompute-mode auto", "--enable-recompute"],
    ["--recompute-checkpoints", "--recompute-checkpoints add_1 fc"],
    ["--lr 0.5", "--lr-schedule exponential --lr-scheduler-freq 0.4", "--lr-epoch-decay 30 60"],
    ["--epoch 30", "--epoch 2 --warmup-epoch 1"],
    ["--optimizer rmsprop_tf --rmsprop-decay 0.9", "--optimizer adamw", "--momentum 0.8"],
    ["--norm-type group --norm-num-groups 8", "--norm-type none", "--disable-stable-batchnorm"],
    ["--precision 16.32", "--auto-loss-scaling", "--loss-scaling 128 --initial-loss-scaling 16"],
    ["--normalization-location ipu", "--normalization-location none", "--eight-bit-io"],
    ["--checkpoint-output-path here", "--checkpoint-output-dir there", "--checkpoint-path both"],
    ["--validation-mode during --validation-frequency 2", "--validation-mode none"],
    ["--weight-avg-strategy mean --weight-avg-N 3", "--weight-avg-strategy exponential"],
    ["--seed 4", "--dataloader-worker 3", "--disable-async-loading"],
]

POPART = [
    ["--dataset IMAGENET", "--dataset CIFAR-10", "--use-generated-data"],
    ["--size 50", "--size x50", "--size 8"],
    ["--norm-type BATCH", "--norm-type NONE", "--norm-groups 8"],
    ["--shortcut-type C", "--num-workers 0"],
    ["--batch-size 16", "--batch-size 48"],
    ["--replication-factor 2", "--replication-factor 2 --num-ipus 4 --pipeline", "--num-ipus 2"],
    ["--gradient-accumulation-factor 8"],
    ["--epochs 4", "--steps 5", "--batches-per-step 10"],
    ["--base-learning-rate -9", "--weight-decay 0.001"],
    ["--learning-rate-schedule 0.3,0.6 --learning-rate-decay 1,0.5,0.1"],
    ["--precision 32", "--half-partials", "--fp-exceptions"],
    ["--no-prng", "--recompute", "--simulation"],
    ["--no-validation", "--steps-per-log 2", "--log-dir there", "--report"],
]


def mixtures(rows: list[list[str]], program: str, *configs: str) -> SearchStrategy[str]:
    """A command of the program with at most one item of each row, in any order."""
    combinations = st.lists(st.integers(0, len(rows) - 1), unique=True, max_size=15).flatmap(
        lambda chosen: st.tuples(*(st.sampled_from(rows[row]) for row in chosen))
    )
    named = st.sampled_from(["", *(f"--config {config}" for config in configs)])
    return st.tuples(named, combinations).map(
        lambda samples: " ".join([f"python3 {program}", samples[0], *samples[1]])
    )
