"""The command lines in the READMEs and benchmarks of the reference applications.

Placeholders: DATA is a data folder, RUN a run, NAME a benchmark, hostN a host, SUBNET a network.
Two lines are invalid in the READMEs: an option without a value, and Python without a program.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """A command line: the words before `python`, Python with its program, and the arguments."""

    dialect: str
    launcher: str
    program: str
    arguments: str

    @property
    def line(self) -> str:
        """The complete command."""
        return " ".join(piece for piece in self[1:] if piece)


ROWS = [
    Row("tensorflow", "", "python3 train.py", "--dataset imagenet --data-dir DATA"),
    Row("tensorflow", "", "python restore.py", "--restore-path RUN"),
    Row(
        "tensorflow",
        "",
        "python train.py",
        "--model resnet --model-size 50 --dataset imagenet --data-dir DATA --batch-size 8",
    ),
    Row(
        "tensorflow",
        "",
        "python train.py",
        "--dataset imagenet --data-dir DATA --model-size 50 --batch-size 2 --shards 2 "
        "--pipeline --gradient-accumulation-count 128 --pipeline-splits b3/0/relu "
        "--pipeline-schedule Grouped --available-memory-proportion 0.4 "
        "--enable-recomputation --replicas 4",
    ),
    Row(
        "tensorflow",
        "",
        "python train.py",
        "--model resnet --model-size 50 --dataset imagenet --data-dir DATA --replicas 16 "
        "--batch-size 8 --gradient-accumulation-count 8 --epochs 65 --enable-recomputation "
        "--optimiser momentum --momentum 0.90 --ckpts-per-epoch 1 "
        "--internal-exchange-optimisation-target balanced --normalise-input --stable-norm "
        "--enable-half-partials --lr-schedule cosine --label-smoothing 0.1 --eight-bit-io",
    ),
    Row(
        "tensorflow",
        "",
        "python train.py",
        "--dataset imagenet --data-dir DATA --model-size 50 --batch-size 1 "
        "--available-memory-proportion 0.1",
    ),
    Row(
        "tensorflow",
        "",
        "python train.py",
        "--model resnet --model-size 50 --dataset imagenet --data-dir DATA --shards 4 "
        "--replicas 4 --batch-size 4 --gradient-accumulation-count 64 --epochs 65 "
        "--pipeline --pipeline-splits b1/2/relu b2/3/relu b3/5/relu --pipeline-schedule "
        "Grouped --enable-recomputation --optimiser momentum --momentum 0.90 "
        "--ckpts-per-epoch 1 --max-cross-replica-buffer-size 100000000 "
        "--available-memory-proportion 0.6 0.6 0.6 0.6 0.6 0.6 0.16 0.2 "
        "--internal-exchange-optimisation-target balanced --normalise-input --stable-norm "
        "--enable-half-partials --lr-schedule cosine --label-smoothing 0.1 --eight-bit-io",
    ),
    Row(
        "tensorflow",
        "",
        "python train.py",
        "--model resnext --model-size 101 --dataset imagenet --data-dir DATA --shards 2 "
        "--replicas 8 --batch-size 6 --gradient-accumulation-count 16 --epoch 120 "
        "--pipeline --pipeline-splits b3/3/relu --pipeline-schedule Grouped "
        "--enable-recomputation --optimiser momentum --momentum 0.9 --ckpts-per-epoch 1 "
        "--internal-exchange-optimisation-target balanced --disable-variable-offloading "
        "--normalise-input --stable-norm --base-learning-rate -11 --no-validation "
        "--enable-half-partials --lr-schedule cosine --label-smoothing 0.1 --eight-bit-io",
    ),
    Row(
        "tensorflow",
        "",
        "python train.py",
        "--model efficientnet --model-size B0 --data-dir DATA --shards 4 --batch-size 4 "
        "--pipeline --gradient-accumulation-count 128 --pipeline-splits block2b block4a "
        "block6a --enable-recomputation --pipeline-schedule Grouped --optimiser RMSprop "
        "--precision 16.32",
    ),
    Row(
        "tensorflow",
        "",
        "python train.py",
        "--model efficientnet --model-size B0 --data-dir DATA --batch-size 8 --shards 4 "
        "--pipeline --gradient-accumulation-count 64 --pipeline-splits block2a/SE block4a "
        "block5c --enable-recomputation --pipeline-schedule Grouped --optimiser RMSprop "
        "--precision 16.32 --group-dim 16 --expand-ratio 4 --groups 4",
    ),
    Row(
        "tensorflow",
        "",
        "python validation.py",
        "--model efficientnet --model-size B0 --dataset imagenet --batch-size 8 "
        "--generated-data --repeat 10 --batch-norm",
    ),
    Row("tensorflow", "", "python3 train.py", "--config my_config"),
    Row("tensorflow", "", "python3 train.py", "--config my_config --epochs 50"),
    Row(
        "tensorflow",
        "poprun -v --numa-aware 1 --num-instances 8 --num-replicas 16 --ipus-per-replica 1 "
        '--mpi-local-args="--tag-output"',
        "python3 train.py",
        "--config mk2_resnet50_gn_16ipus --data-dir DATA --no-validation",
    ),
    Row(
        "tensorflow",
        "poprun -v --numa-aware 1 --num-instances 8 --num-replicas 16 --ipus-per-replica 1 "
        '--mpi-local-args="--tag-output"',
        "python3 validation.py",
        "--config mk2_resnet50_gn_16ipus --data-dir DATA --restore-path RUN",
    ),
    Row(
        "tensorflow",
        "poprun -v --numa-aware 1 --num-instances 4 --num-replicas 4 --ipus-per-replica "
        '--mpi-local-args="--tag-output"',
        "python3 train.py",
        "--config mk2_resnet50_bn_16ipus --data-dir DATA --no-validation",
    ),
    Row(
        "tensorflow",
        "poprun -v --numa-aware 1 --num-instances 8 --num-replicas 16 --ipus-per-replica 1 "
        '--mpi-local-args="--tag-output"',
        "python3 validation.py",
        "--config mk2_resnet50_bn_16ipus --shards 1 --data-dir DATA --restore-path RUN",
    ),
    Row(
        "tensorflow",
        "poprun -v --host host2,host3,host4,host5 --numa-aware=yes --vipu-server-host=host2 "
        "--vipu-partition=p64 --reset-partition=no --update-partition=no "
        '--mpi-global-args="--tag-output --mca btl_tcp_if_include SUBNET" '
        '--mpi-local-args="-x LD_LIBRARY_PATH -x PATH -x PYTHONPATH -x '
        "TF_CPP_VMODULE=poplar_compiler=1 -x IPUOF_VIPU_API_TIMEOUT=300 -x "
        'TF_POPLAR_FLAGS=--executable_cache_path=exec_cache" --num-replicas=16 '
        "--num-instances=16 --ipus-per-replica 4",
        "python3 examples/applications/tensorflow/cnns/training/train.py",
        "--config mk2_resnet50_bn_64ipus --no-validation --data-dir DATA",
    ),
    Row(
        "tensorflow",
        "poprun -v --host host2,host3,host4,host5 --numa-aware=yes --vipu-server-host=host2 "
        "--vipu-partition=p64 --reset-partition=no --update-partition=no "
        '--mpi-global-args="--tag-output --mca btl_tcp_if_include SUBNET" '
        '--mpi-local-args="-x LD_LIBRARY_PATH -x PYTHONPATH -x '
        "TF_CPP_VMODULE=poplar_compiler=1 -x IPUOF_VIPU_API_TIMEOUT=300 -x "
        'TF_POPLAR_FLAGS=--executable_cache_path=exec_cache" --num-replicas=64 '
        "--num-instances=32 --ipus-per-replica 1",
        "python3 examples/applications/tensorflow/cnns/training/train.py",
        "--config mk2_resnet50_bn_64ipus --shards 1 --data-dir DATA --restore-path RUN",
    ),
    Row(
        "tensorflow",
        'POPLAR_ENGINE_OPTIONS=\'{"target.gatewayMode": "true", '
        '"target.syncReplicasIndependently": "true", "target.hostSyncTimeout": "900", '
        '"target.maxStreamCallbackThreadsPerNumaNode": "auto"}\' poprun -v --host '
        "host3,host4,host5,host6,host7,host8,host9,host10 --numa-aware=yes "
        "--vipu-server-host=host1 --vipu-server-timeout=300 --vipu-partition=gcl128 "
        "--vipu-cluster=gcl --reset-partition=no --update-partition=no --num-ilds=2 "
        '--mpi-global-args="--tag-output --allow-run-as-root --mca oob_tcp_if_include '
        'SUBNET --mca btl_tcp_if_include SUBNET" --mpi-local-args="-x LD_LIBRARY_PATH -x '
        "TF_CPP_VMODULE=poplar_compiler=1 -x PATH -x PYTHONPATH -x "
        'IPUOF_VIPU_API_TIMEOUT=600 -x POPLAR_ENGINE_OPTIONS" --ipus-per-replica 4 '
        "--num-replicas=32 --num-instances=32",
        "python3",
        "--config mk2_resnet50_bn_128ipus --no-validation --data-dir DATA",
    ),
    Row(
        "tensorflow",
        "",
        "python train.py",
        "--dataset imagenet --data-dir DATA --model-size 50 --batch-size 4 "
        "--batches-per-step 1 --shards 4 --pipeline --gradient-accumulation-count 64 "
        "--pipeline-splits b1/2/relu b2/3/relu b3/5/relu --enable-recomputation --replicas "
        "4 --distributed --no-stochastic-rounding --base-learning-rate -11",
    ),
    Row("tensorflow", "", "python train.py", "--config mk2_resnet8_test --wandb"),
    Row("tensorflow", "", "python train.py", "--model efficientnet --help"),
    Row("pytorch", "", "python3 train.py", "--data imagenet --imagenet-data-path DATA"),
    Row("pytorch", "", "python3 -m examples_utils", "benchmark --spec benchmarks.yml"),
    Row(
        "pytorch",
        "",
        "python3 -m examples_utils",
        "benchmark --spec benchmarks.yml --benchmark NAME",
    ),
    Row("pytorch", "", "python3 train.py", "--config resnet50 --imagenet-data-path DATA"),
    Row("pytorch", "", "python3 train.py", "--config resnet50 --auto-loss-scaling"),
    Row("pytorch", "", "python3 restore.py", "--checkpoint-input-path RUN"),
    Row("pytorch", "", "python3 validate.py", "--checkpoint-input-path RUN"),
    Row("pytorch", "", "python3 weight_avg.py", "--checkpoint-input-path RUN"),
    Row(
        "tensorflow",
        "",
        "python train.py",
        "--model resnet --model-size 50 --dataset imagenet --data-dir DATA "
        "--ckpts-per-epoch 0 --batch-size 16 --replicas 1 --gradient-accumulation-count "
        "1024 --epochs 1 --no-validation --xla-recompute --optimiser momentum --momentum "
        "0.9 --normalise-input --stable-norm --internal-exchange-optimisation-target "
        "balanced --enable-half-partials --standard-imagenet --pipeline-num-parallel 32 "
        "--pipeline-schedule Grouped --no-dataset-cache --shards=4 --pipeline-splits "
        "b1/2/relu b2/3/relu b3/3/relu --pipeline --batch-norm "
        "--available-memory-proportion 0.15 --disable-variable-offloading --precision 16.32 "
        "--eight-bit-io",
    ),
    Row(
        "tensorflow",
        "poprun --numa-aware=yes --num-replicas=4 --num-instances=4 --ipus-per-replica 4",
        "python train.py",
        "--model resnet --model-size 50 --dataset imagenet --data-dir DATA "
        "--ckpts-per-epoch 0 --batch-size 16 --gradient-accumulation-count 256 --epochs 1 "
        "--no-validation --xla-recompute --optimiser momentum --momentum 0.9 "
        "--normalise-input --stable-norm --internal-exchange-optimisation-target balanced "
        "--enable-half-partials --standard-imagenet --pipeline-num-parallel 32 "
        "--pipeline-schedule Grouped --no-dataset-cache --shards=4 --pipeline-splits "
        "b1/2/relu b2/3/relu b3/3/relu --pipeline --batch-norm "
        "--available-memory-proportion 0.15 --disable-variable-offloading --precision 16.32 "
        "--eight-bit-io",
    ),
    Row(
        "tensorflow",
        "",
        "python train.py",
        "--model resnext --model-size 101 --dataset imagenet --data-dir DATA --shards 2 "
        "--replicas 2 --batch-size 6 --pipeline --gradient-accumulation-count 64 "
        "--pipeline-splits b3/3/relu --epoch 2 --ckpts-per-epoch 0 --xla-recompute "
        "--normalise-input --internal-exchange-optimisation-target balanced "
        "--enable-half-partials --stable-norm --base-learning-rate -11 --pipeline-schedule "
        "Grouped --optimiser momentum --momentum 0.9 --lr-schedule cosine --label-smoothing "
        "0.1 --no-validation --disable-variable-offloading --eight-bit-io",
    ),
    Row(
        "tensorflow",
        "poprun --numa-aware 1 --num-replicas 8 --ipus-per-replica 2 --num-instances 8",
        "python train.py",
        "--model resnext --model-size 101 --dataset imagenet --data-dir DATA --shards 2 "
        "--batch-size 6 --pipeline --gradient-accumulation-count 16 --pipeline-splits "
        "b3/3/relu --epoch 2 --ckpts-per-epoch 0 --xla-recompute --normalise-input "
        "--internal-exchange-optimisation-target balanced --enable-half-partials "
        "--stable-norm --base-learning-rate -11 --pipeline-schedule Grouped --optimiser "
        "momentum --momentum 0.9 --lr-schedule cosine --label-smoothing 0.1 --no-validation "
        "--disable-variable-offloading --standard-imagenet --eight-bit-io",
    ),
    Row(
        "tensorflow",
        "",
        "python3 train.py",
        "--model=efficientnet --model-size=4 --data-dir DATA --precision=16.32 "
        "--group-dim=16 --expand-ratio=4 --dataset=imagenet --groups=4 --optimiser=RMSprop "
        "--lr-schedule=exponential --xla-recompute --enable-conv-dithering "
        "--available-memory-proportion=0.15 --pipeline-schedule Grouped "
        "--internal-exchange-optimisation-target balanced --weight-avg-exp 0.97 "
        "--enable-half-partials --cutmix-lambda 0.85 --mixup-alpha=0.2 "
        "--disable-variable-offloading --batch-size=5 --shards=4 --pipeline-split block2c "
        "block4c block6a --pipeline --gradient-accumulation-count=40 --no-validation "
        "--epochs 2",
    ),
    Row(
        "tensorflow",
        "poprun --numa-aware 1 --num-replicas 4 --ipus-per-replica 4 --num-instances 4",
        "python3 train.py",
        "--model=efficientnet --model-size=4 --data-dir DATA --precision=16.32 "
        "--group-dim=16 --expand-ratio=4 --dataset=imagenet --groups=4 --optimiser=RMSprop "
        "--lr-schedule=exponential --xla-recompute --enable-conv-dithering "
        "--available-memory-proportion=0.15 --pipeline-schedule Grouped "
        "--internal-exchange-optimisation-target balanced --weight-avg-exp 0.97 "
        "--enable-half-partials --cutmix-lambda 0.85 --mixup-alpha=0.2 "
        "--disable-variable-offloading --batch-size=5 --shards=4 --pipeline-split block2c "
        "block4c block6a --pipeline --gradient-accumulation-count=40 --no-validation "
        "--epochs 1",
    ),
    Row(
        "tensorflow",
        "",
        "python3 validation.py",
        "--model resnet --model-size 50 --dataset imagenet --batch-size 1 --synthetic-data "
        "--repeat 10 --batch-norm --enable-half-partials",
    ),
    Row(
        "tensorflow",
        "",
        "python3 validation.py",
        "--model resnext --model-size 101 --dataset imagenet --batch-size 1 "
        "--synthetic-data --repeat 10 --batch-norm --enable-half-partials",
    ),
    Row(
        "tensorflow",
        "",
        "python3 validation.py",
        "--model efficientnet --model-size 0 --dataset imagenet --precision 16.16 "
        "--batch-size 1 --synthetic-data --repeat 10 --batch-norm --enable-half-partials",
    ),
    Row(
        "tensorflow",
        "poprun --num-replicas 4 --ipus-per-replica 1 --num-instances 4 --numa-aware 1",
        "python3 validation.py",
        "--model resnet --model-size 50 --dataset imagenet --batch-size 1 --generated-data "
        "--repeat 10 --batch-norm --enable-half-partials --eight-bit-io",
    ),
    Row(
        "tensorflow",
        "poprun --num-replicas 4 --ipus-per-replica 1 --num-instances 4 --numa-aware 1",
        "python3 validation.py",
        "--model resnext --model-size 101 --dataset imagenet --batch-size 2 "
        "--generated-data --repeat 10 --batch-norm --enable-half-partials --eight-bit-io",
    ),
    Row(
        "tensorflow",
        "poprun --num-replicas 4 --ipus-per-replica 1 --num-instances 4 --numa-aware 1",
        "python3 validation.py",
        "--model efficientnet --model-size 0 --dataset imagenet --precision 16.16 "
        "--batch-size 8 --generated-data --repeat 10 --batch-norm --enable-half-partials "
        "--eight-bit-io",
    ),
    Row("popart", "", "python resnet_main.py", "--data-dir=DATA"),
    Row(
        "tensorflow",
        "mpirun --tag-output -H host1,host2 -bind-to none -map-by slot -x LD_LIBRARY_PATH "
        "-x PATH -x "
        'TF_CONFIG=\'{"cluster":{"worker":["host1:3636","host2:3636"]},"task":{"type":"worker"}}\'',
        "python train.py",
        "--dataset imagenet --data-dir DATA --model-size 50 --batch-size 4 "
        "--batches-per-step 1 --distributed --no-stochastic-rounding --base-learning-rate "
        "-11",
    ),
    Row(
        "tensorflow",
        "gc-profile -d profile_dir --",
        "python train.py",
        "--config mk2_resnet8_test --gc-profile",
    ),
    Row("pytorch", "", "python3 train.py", "--config resnet50-pod64 --imagenet-data-path DATA"),
    Row(
        "pytorch",
        "",
        "python3 train.py",
        "--config efficientnet-b0-g16-gn-pod16 --imagenet-data-path DATA",
    ),
    Row(
        "pytorch",
        "",
        "python3 train.py",
        "--config efficientnet-b4-g16-gn-pod16 --imagenet-data-path DATA",
    ),
    Row(
        "pytorch",
        "",
        "python3 train.py",
        "--config mobilenet-v3-small-pod4 --imagenet-data-path DATA",
    ),
    Row(
        "pytorch",
        "",
        "python3 train.py",
        "--config mobilenet-v3-large-pod16 --imagenet-data-path DATA",
    ),
    Row(
        "pytorch",
        "poprun --num-instances=8 --num-replicas=16",
        "python3 train.py",
        "--config resnet50 --imagenet-data-path DATA",
    ),
    Row(
        "popart",
        "",
        "python resnet_main.py",
        "--size x50 --dataset IMAGENET --data-dir DATA --batch-size 16 --num-ipus 4 "
        "--replication-factor 2 --gradient-accumulation-factor 8 --pipeline --recompute "
        "--no-prng --base-learning-rate -9",
    ),
    Row("popart", "", "python resnet_main.py", "--size 50 --data-dir DATA --batch-size 8"),
]
