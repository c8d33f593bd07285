# Completes convoy in bash (3.2 or newer). Written by tools/write_docs.py.

_convoy_verbs='train resume validate predict average launch run plan prove data import export models configs options completion'
_convoy_run='--model --pretrained --data --data-dir --image-size --epochs --micro-batch-size --gradient-accumulation --seed --optimizer --lr --lr-schedule --warmup-epoch --weight-decay --label-smoothing --mixup-alpha --device --replicas --shards --pipeline-schedule --precision --output --resnet-version --stem --shortcut-type --conv-padding --input-image-padding --norm-type --norm-num-groups --norm-eps --batchnorm-momentum --zero-init-last-norm --weight-init --stable-norm --enable-fast-groupnorm --full-precision-norm --cardinality --group-dim --expand-ratio --widenet --dropout-rate --block-survival-prob --squeeze-excite --depth-divisor --top-width --use-relu --width-coefficient --depth-coefficient --use-bypass --proxy-norm --proxy-epsilon --proxy-recompute --validation-share --num-classes --samples --dataset-percentage-to-use --augment --crop-rule --use-bbox-info --normalization-location --normalize-std --eight-bit-io --num-workers --prefetch-depth --dataloader-kind --dataloader-rebatch-size --dataset-cache --dataset-cache-mb --webdataset-memory-cache-ratio --bad-records --max-bad-records --cutmix-lambda-low --cutmix-lambda-high --cutmix-version --cutmix-disable-prob --hostside-image-mixing --device-iterations --updates --stop-after --start-epoch --base-learning-rate-exponent --lr-decay --lr-epoch-decay --lr-share-decay --lr-multipliers --lr-drops --lr-scheduler-freq --poly-lr-decay-power --poly-lr-end-ratio --abs-end-learning-rate --momentum --weight-decay-exclude --rmsprop-decay --rmsprop-base-decay-exp --optimizer-eps --lars-epsilon --lars-eeta --lars-weight-decay --lars-skip-list --loss-velocity-scaling-ratio --optimizer-state-dtype --variable-filter --gradient-mean-reduce-re --label-smoothing-over --loss-scaling --initial-loss-scaling --auto-loss-scaling --on-nonfinite --max-skipped --half-type --half-arithmetic --half-partial --enable-stochastic-rounding --enable-fp-exceptions --saturate-on-overflow --force-weight-to-fp16 --force-weight-to-fp32 --offload-fp32-weight-copy --half-res-training --fine-tune-epoch --fine-tune-lr --fine-tune-micro-batch-size --fine-tune-gradient-accumulation --fine-tune-first-trainable-layer --pipeline-splits --stages-per-device --device-mapping --sharding-include-filter --sharding-exclude-filter --enable-recompute --recompute-checkpoints --offload-optimizer --min-remote-tensor-size --enable-optimizer-rts --accumulator-dtype --accumulator-dtype-rules --gradient-reduction --available-memory-proportion --reduction --overlap-reduction --max-cross-replica-buffer-size --max-reduce-many-buffer-size --gcl-method --gcl-max-broadcast-size --bn-span --threads --select-devices --hosts --instances --exchange-memory-target --compile --compile-only --model-cache-path --force-recompile --tmp-execs --num-io-tiles --enable-conv-dithering --gather-conv-output --only-use-slic-vmac-16 --scheduling-algorithm --poplar-sync-configuration --offline-target-ipu-version --init-path --ckpts-per-epoch --epochs-per-ckpt --ckpt-epochs-offset --keep-last --on-save-error --weight-avg-strategy --weight-avg-n --weight-avg-exp-decay --norm-statistics --ema-decay --validation-mode --validation-frequency --valid-batch-size --random-weights --repeat --latency --backend --num-inference-thread --logs-per-epoch --log-freq --log-dir --name --name-suffix --progress --logs --disable-metrics --analyze-nans --mlperf-logging --profile --profile-compilation --wandb --wandb-project --wandb-id --wandb-weight-histogram --no-input-image-padding --no-zero-init-last-norm --no-stable-norm --no-enable-fast-groupnorm --no-full-precision-norm --no-widenet --no-squeeze-excite --no-use-relu --no-use-bypass --no-proxy-norm --no-proxy-recompute --no-augment --no-use-bbox-info --no-normalize-std --no-eight-bit-io --no-dataset-cache --no-hostside-image-mixing --no-auto-loss-scaling --no-half-partial --no-enable-stochastic-rounding --no-enable-fp-exceptions --no-saturate-on-overflow --no-offload-fp32-weight-copy --no-half-res-training --no-enable-recompute --no-offload-optimizer --no-enable-optimizer-rts --no-overlap-reduction --no-compile --no-compile-only --no-force-recompile --no-tmp-execs --no-enable-conv-dithering --no-gather-conv-output --no-only-use-slic-vmac-16 --no-random-weights --no-latency --no-logs --no-disable-metrics --no-analyze-nans --no-mlperf-logging --no-profile --no-profile-compilation --no-wandb --no-wandb-weight-histogram'
_convoy_older='--imagenet-data-path --epoch --batch-size --checkpoint-output-path --efficientnet-group-dim --efficientnet-expand-ratio --webdataset-percentage-to-use --dataloader-worker --pipeline-num-parallel --epochs-before --weight-decay-spares --fine-tune-batch-size --gradient-accumulation-dtype --BN-span --select-ipus --select-ipu --executable-cache-path --checkpoint-save-freq --max-ckpts-to-keep --weight-avg-N --analyse-nans --no-analyse-nans' # offered if nothing else matches

_convoy_options() { # verb → options, older
    options= older=
    case $1 in
    'train') options="--help --dry-run --config --config-path --dialect --help-all $_convoy_run" older=$_convoy_older ;;
    'resume') options="--help --checkpoint --override --help-all $_convoy_run" older=$_convoy_older ;;
    'validate') options="--help --json --config --config-path --dialect --help-all $_convoy_run" older=$_convoy_older ;;
    'predict') options='--help --top-k --batch-size --model --device --json --csv --sheet --override' ;;
    'average') options="--help --help-all $_convoy_run" older=$_convoy_older ;;
    'launch') options='--help --replicas --shards --threads' ;;
    'run') options="--help --dry-run --dialect --help-all $_convoy_run" older=$_convoy_older ;;
    'plan') options="--help --json --explain --config --config-path --dialect --help-all $_convoy_run" older=$_convoy_older ;;
    'prove') options="--help --quick --json --max-processes --config --config-path --dialect --help-all $_convoy_run" older=$_convoy_older ;;
    'data') options='--help' ;;
    'data convert') options='--help --to --split --num-files --records-per-file --shuffle --workers --bad-records --max-bad-records' ;;
    'data verify') options='--help --split --workers --no-decode --json' ;;
    'data fetch') options='--help --data-dir' ;;
    'data bench') options="--help --elements --no-copy --doctor --model-rate --json --config --config-path --dialect --help-all $_convoy_run" older=$_convoy_older ;;
    'data show') options="--help --rows --columns --split --override --config --config-path --dialect --help-all $_convoy_run" older=$_convoy_older ;;
    'import') options="--help --architecture --json --config --config-path --dialect --help-all $_convoy_run" older=$_convoy_older ;;
    'export') options="--help --format --naming --override --json --config --config-path --dialect --help-all $_convoy_run" older=$_convoy_older ;;
    'models') options='--help --splits --json' ;;
    'configs') options='--help --json' ;;
    'options') options='--help --json --schema' ;;
    'completion') options='--help' ;;
    esac
}

_convoy_value() { # verb, option → takes, offered
    takes=one offered=
    case "$1 $2" in
    'train --help' | 'train --dry-run' | 'train --help-all' | 'resume --help' | 'resume --override' | 'resume --help-all' | 'validate --help' | 'validate --json' | 'validate --help-all' | 'predict --help' | 'predict --json' | 'predict --csv' | 'predict --override' | 'average --help' | 'average --help-all' | 'launch --help' | 'run --help' | 'run --dry-run' | 'run --help-all' | 'plan --help' | 'plan --json' | 'plan --explain' | 'plan --help-all' | 'prove --help' | 'prove --quick' | 'prove --json' | 'prove --help-all' | 'data --help' | 'data convert --help' | 'data verify --help' | 'data verify --no-decode' | 'data verify --json' | 'data fetch --help' | 'data bench --help' | 'data bench --no-copy' | 'data bench --doctor' | 'data bench --json' | 'data bench --help-all' | 'data show --help' | 'data show --override' | 'data show --help-all' | 'import --help' | 'import --json' | 'import --help-all' | 'export --help' | 'export --override' | 'export --json' | 'export --help-all' | 'models --help' | 'models --splits' | 'models --json' | 'configs --help' | 'configs --json' | 'options --help' | 'options --json' | 'options --schema' | 'completion --help') takes=none ;;
    'train --config' | 'validate --config' | 'plan --config' | 'prove --config' | 'data bench --config' | 'data show --config' | 'import --config' | 'export --config') offered='cifar10-resnet20 efficientnet-b0-g16-gn-16ipu-mk2 efficientnet-b0-g16-gn-pod16 efficientnet-b4-g1-gn-pod16 efficientnet-b4-g16-gn-16ipu-mk2 efficientnet-b4-g16-gn-pod16 efficientnet-b4-g16-gn-pod64 efficientnet-g16-gn-16ipu-mk2-base efficientnet-g16-gn-pod16-base efficientnet_b4_16ipus_base efficientnet_b4_g16_16ipus efficientnet_b4_g16_32ipus efficientnet_b4_g16_64ipus efficientnet_b4_g16_large_batch_size_high_throughput efficientnet_b4_g1_16ipus efficientnet_b4_g1_32ipus efficientnet_b4_g1_64ipus efficientnet_b4_g1_with_batch_norm_16ipus efficientnet_b4_g1_with_batch_norm_64ipus efficientnet_b4_g1_with_batch_norm_base efficientnet_b4_g1_with_batch_norm_pod64_modification inference/common inference/efficientnet-b0 inference/efficientnet-b0-g16-gn inference/efficientnet-b0-g16-gn-mk2 inference/efficientnet-b0-mk1 inference/efficientnet-b0-mk2 inference/efficientnet-b4 inference/efficientnet-b4-g16-gn inference/efficientnet-b4-g16-gn-mk2 inference/efficientnet-b4-mk2 inference/efficientnet-g16-gn inference/mobilenet-v3-large inference/mobilenet-v3-large-mk2 inference/mobilenet-v3-small inference/mobilenet-v3-small-mk2 inference/resnet50 inference/resnet50-mk1 inference/resnet50-mk2 mk1_resnet50_16ipus mk2_efficientnet_b4_16ipus_base mk2_efficientnet_b4_g16_128ipus mk2_efficientnet_b4_g16_16ipus mk2_efficientnet_b4_g16_256ipus mk2_efficientnet_b4_g16_32ipus mk2_efficientnet_b4_g16_64ipus mk2_efficientnet_b4_g16_64ipus_LARS mk2_efficientnet_b4_g1_16ipus mk2_efficientnet_b4_g1_32ipus mk2_efficientnet_b4_g1_64ipus mk2_resnet50_base mk2_resnet50_bn_128ipus mk2_resnet50_bn_16ipus mk2_resnet50_bn_64ipus mk2_resnet50_gn_16ipus mk2_resnet50_gn_64ipus mk2_resnet50_mlperf_pod128_bs20 mk2_resnet50_mlperf_pod128_lars mk2_resnet50_mlperf_pod16 mk2_resnet50_mlperf_pod16_bs20 mk2_resnet50_mlperf_pod16_lars mk2_resnet50_mlperf_pod256_lars mk2_resnet50_mlperf_pod4_bs20 mk2_resnet50_mlperf_pod64_bs20 mk2_resnet50_mlperf_pod64_lars mk2_resnet8_test mk2_resnext101_16ipus mobilenet-v3-base mobilenet-v3-large mobilenet-v3-large-pod16 mobilenet-v3-small mobilenet-v3-small-pod4 resnet50 resnet50-16ipu-mk2-recompute resnet50-pipeline4 resnet50-pod4 resnet50-pod64 resnet50_base resnet50_bn_16ipus resnet50_bn_32ipus resnet50_bn_64ipus resnet50_gn_16ipus resnet50_mk2 resnet50_mk2_pipelined resnet50_mk2_pipelined_pod64 resnet50_mk2_pod64 resnet50_mlperf_pod16 resnet50_mlperf_pod16_bs20 resnet50_mlperf_pod16_lars resnet50_mlperf_pod32_lars resnet50_mlperf_pod64_bs20 resnet50_mlperf_pod64_lars resnet8_test resnext101_16ipus shapes-resnet14' ;;
    'train --config-path' | 'validate --config-path' | 'predict --sheet' | 'plan --config-path' | 'prove --config-path' | 'data bench --config-path' | 'data show --config-path' | 'import --config-path' | 'export --config-path') offered='/files' ;;
    'resume --checkpoint' | 'data fetch --data-dir') offered='/directories' ;;
    'predict --device') offered='auto cpu cuda mps' ;;
    'data convert --to') offered='folder tfrecord webdataset' ;;
    'data convert --split' | 'data verify --split') offered='train validation all' ;;
    'data convert --bad-records') offered='error skip' ;;
    'data show --split') offered='train validation' ;;
    'export --format') offered='safetensors torch-export onnx' ;;
    'export --naming') offered='torchvision timm convoy' ;;
    *' --model') offered='resnet8 resnet14 resnet20 resnet32 resnet44 resnet56 resnet110 resnet11 resnet29 resnet38 resnet47 resnet65 resnet56-bottleneck resnet10 resnet18 resnet34 resnet14-large resnet26 resnet50 resnet101 resnet152 resnext11 resnext29 resnext38 resnext47 resnext56 resnext65 resnext14 resnext26 resnext50 resnext101 resnext152 efficientnet-cifar efficientnet-b0 efficientnet-b1 efficientnet-b2 efficientnet-b3 efficientnet-b4 efficientnet-b5 efficientnet-b6 efficientnet-b7 mobilenet mobilenet-v3-small mobilenet-v3-large mobilenet-v3-small-published mobilenet-v3-large-published squeezenet' ;;
    *' --pretrained' | *' --model-cache-path' | *' --executable-cache-path') offered='/files' ;;
    *' --data') offered='shapes cifar10 cifar100 imagenet generated synthetic' ;;
    *' --data-dir' | *' --imagenet-data-path' | *' --output' | *' --checkpoint-output-path' | *' --init-path') offered='/directories' ;;
    *' --optimizer') offered='sgd sgd_combined adamw rmsprop rmsprop_tf lars' ;;
    *' --lr-schedule') offered='step cosine exponential polynomial' ;;
    *' --device') offered='auto cpu cuda mps' ;;
    *' --pipeline-schedule') offered='grouped interleaved 1f1b sequential zero-bubble looped' ;;
    *' --precision') offered='16.16 16.32 32.32' ;;
    *' --resnet-version') offered='v1.5 v1' ;;
    *' --stem') offered='auto small large' ;;
    *' --shortcut-type') offered='auto A B C first' ;;
    *' --conv-padding') offered='symmetric same' ;;
    *' --input-image-padding' | *' --zero-init-last-norm' | *' --stable-norm' | *' --enable-fast-groupnorm' | *' --full-precision-norm' | *' --widenet' | *' --squeeze-excite' | *' --use-relu' | *' --use-bypass' | *' --proxy-norm' | *' --proxy-recompute' | *' --augment' | *' --use-bbox-info' | *' --normalize-std' | *' --eight-bit-io' | *' --dataset-cache' | *' --hostside-image-mixing' | *' --auto-loss-scaling' | *' --half-partial' | *' --enable-stochastic-rounding' | *' --enable-fp-exceptions' | *' --saturate-on-overflow' | *' --offload-fp32-weight-copy' | *' --half-res-training' | *' --enable-recompute' | *' --offload-optimizer' | *' --enable-optimizer-rts' | *' --overlap-reduction' | *' --compile' | *' --compile-only' | *' --force-recompile' | *' --tmp-execs' | *' --enable-conv-dithering' | *' --gather-conv-output' | *' --only-use-slic-vmac-16' | *' --random-weights' | *' --latency' | *' --logs' | *' --disable-metrics' | *' --analyze-nans' | *' --mlperf-logging' | *' --profile' | *' --profile-compilation' | *' --wandb' | *' --wandb-weight-histogram' | *' --no-input-image-padding' | *' --no-zero-init-last-norm' | *' --no-stable-norm' | *' --no-enable-fast-groupnorm' | *' --no-full-precision-norm' | *' --no-widenet' | *' --no-squeeze-excite' | *' --no-use-relu' | *' --no-use-bypass' | *' --no-proxy-norm' | *' --no-proxy-recompute' | *' --no-augment' | *' --no-use-bbox-info' | *' --no-normalize-std' | *' --no-eight-bit-io' | *' --no-dataset-cache' | *' --no-hostside-image-mixing' | *' --no-auto-loss-scaling' | *' --no-half-partial' | *' --no-enable-stochastic-rounding' | *' --no-enable-fp-exceptions' | *' --no-saturate-on-overflow' | *' --no-offload-fp32-weight-copy' | *' --no-half-res-training' | *' --no-enable-recompute' | *' --no-offload-optimizer' | *' --no-enable-optimizer-rts' | *' --no-overlap-reduction' | *' --no-compile' | *' --no-compile-only' | *' --no-force-recompile' | *' --no-tmp-execs' | *' --no-enable-conv-dithering' | *' --no-gather-conv-output' | *' --no-only-use-slic-vmac-16' | *' --no-random-weights' | *' --no-latency' | *' --no-logs' | *' --no-disable-metrics' | *' --no-analyze-nans' | *' --analyse-nans' | *' --no-analyse-nans' | *' --no-mlperf-logging' | *' --no-profile' | *' --no-profile-compilation' | *' --no-wandb' | *' --no-wandb-weight-histogram') takes=none ;;
    *' --norm-type') offered='batch group none' ;;
    *' --weight-init') offered='pytorch tensorflow popart' ;;
    *' --crop-rule') offered='pytorch tensorflow' ;;
    *' --normalization-location') offered='host device none' ;;
    *' --dataloader-kind') offered='threads processes' ;;
    *' --bad-records') offered='error skip' ;;
    *' --lr-epoch-decay' | *' --lr-share-decay' | *' --lr-multipliers' | *' --lars-skip-list' | *' --variable-filter' | *' --gradient-mean-reduce-re' | *' --force-weight-to-fp16' | *' --force-weight-to-fp32' | *' --pipeline-splits' | *' --device-mapping' | *' --sharding-include-filter' | *' --sharding-exclude-filter' | *' --recompute-checkpoints' | *' --accumulator-dtype-rules' | *' --available-memory-proportion' | *' --select-devices' | *' --select-ipus' | *' --select-ipu') takes=many ;;
    *' --weight-decay-exclude' | *' --weight-decay-spares') offered='vectors norms nothing' ;;
    *' --optimizer-state-dtype') offered='float32 weights float16 bfloat16' ;;
    *' --label-smoothing-over') offered='all others' ;;
    *' --on-nonfinite') offered='stop skip' ;;
    *' --half-type') offered='float16 bfloat16' ;;
    *' --half-arithmetic') offered='auto native emulated' ;;
    *' --accumulator-dtype' | *' --gradient-accumulation-dtype') offered='auto float64 float32 bfloat16 float16' ;;
    *' --gradient-reduction') offered='auto mean running-mean sum' ;;
    *' --reduction') offered='exact fast' ;;
    *' --gcl-method') offered='auto broadcast clockwise_ring anticlockwise_ring bidirectional_ring_pair meet_in_middle_ring quad_directional_ring' ;;
    *' --exchange-memory-target') offered='balanced cycles memory' ;;
    *' --scheduling-algorithm') offered='choose-best clustering post-order look-ahead shortest-path' ;;
    *' --on-save-error') offered='stop continue' ;;
    *' --weight-avg-strategy') offered='none mean exponential' ;;
    *' --norm-statistics') offered='recompute average keep' ;;
    *' --validation-mode') offered='none during after' ;;
    *' --backend') offered='torch compiled onnxruntime' ;;
    *' --progress') offered='auto rich plain none' ;;
    esac
}

_convoy_positional() { # verb, number of positional arguments before → offered
    offered=
    case "$1 $2" in
    'resume 0' | 'predict 0' | 'average 0' | 'data verify 0' | 'export 0') offered='/directories' ;;
    'launch 0') offered='/files' ;;
    'data 0') offered='convert verify fetch bench show' ;;
    'data fetch 0') offered='cifar10 cifar100' ;;
    'models 0') offered='resnet8 resnet14 resnet20 resnet32 resnet44 resnet56 resnet110 resnet11 resnet29 resnet38 resnet47 resnet65 resnet56-bottleneck resnet10 resnet18 resnet34 resnet14-large resnet26 resnet50 resnet101 resnet152 resnext11 resnext29 resnext38 resnext47 resnext56 resnext65 resnext14 resnext26 resnext50 resnext101 resnext152 efficientnet-cifar efficientnet-b0 efficientnet-b1 efficientnet-b2 efficientnet-b3 efficientnet-b4 efficientnet-b5 efficientnet-b6 efficientnet-b7 mobilenet mobilenet-v3-small mobilenet-v3-large mobilenet-v3-small-published mobilenet-v3-large-published squeezenet' ;;
    'configs 0') offered='cifar10-resnet20 efficientnet-b0-g16-gn-16ipu-mk2 efficientnet-b0-g16-gn-pod16 efficientnet-b4-g1-gn-pod16 efficientnet-b4-g16-gn-16ipu-mk2 efficientnet-b4-g16-gn-pod16 efficientnet-b4-g16-gn-pod64 efficientnet-g16-gn-16ipu-mk2-base efficientnet-g16-gn-pod16-base efficientnet_b4_16ipus_base efficientnet_b4_g16_16ipus efficientnet_b4_g16_32ipus efficientnet_b4_g16_64ipus efficientnet_b4_g16_large_batch_size_high_throughput efficientnet_b4_g1_16ipus efficientnet_b4_g1_32ipus efficientnet_b4_g1_64ipus efficientnet_b4_g1_with_batch_norm_16ipus efficientnet_b4_g1_with_batch_norm_64ipus efficientnet_b4_g1_with_batch_norm_base efficientnet_b4_g1_with_batch_norm_pod64_modification inference/common inference/efficientnet-b0 inference/efficientnet-b0-g16-gn inference/efficientnet-b0-g16-gn-mk2 inference/efficientnet-b0-mk1 inference/efficientnet-b0-mk2 inference/efficientnet-b4 inference/efficientnet-b4-g16-gn inference/efficientnet-b4-g16-gn-mk2 inference/efficientnet-b4-mk2 inference/efficientnet-g16-gn inference/mobilenet-v3-large inference/mobilenet-v3-large-mk2 inference/mobilenet-v3-small inference/mobilenet-v3-small-mk2 inference/resnet50 inference/resnet50-mk1 inference/resnet50-mk2 mk1_resnet50_16ipus mk2_efficientnet_b4_16ipus_base mk2_efficientnet_b4_g16_128ipus mk2_efficientnet_b4_g16_16ipus mk2_efficientnet_b4_g16_256ipus mk2_efficientnet_b4_g16_32ipus mk2_efficientnet_b4_g16_64ipus mk2_efficientnet_b4_g16_64ipus_LARS mk2_efficientnet_b4_g1_16ipus mk2_efficientnet_b4_g1_32ipus mk2_efficientnet_b4_g1_64ipus mk2_resnet50_base mk2_resnet50_bn_128ipus mk2_resnet50_bn_16ipus mk2_resnet50_bn_64ipus mk2_resnet50_gn_16ipus mk2_resnet50_gn_64ipus mk2_resnet50_mlperf_pod128_bs20 mk2_resnet50_mlperf_pod128_lars mk2_resnet50_mlperf_pod16 mk2_resnet50_mlperf_pod16_bs20 mk2_resnet50_mlperf_pod16_lars mk2_resnet50_mlperf_pod256_lars mk2_resnet50_mlperf_pod4_bs20 mk2_resnet50_mlperf_pod64_bs20 mk2_resnet50_mlperf_pod64_lars mk2_resnet8_test mk2_resnext101_16ipus mobilenet-v3-base mobilenet-v3-large mobilenet-v3-large-pod16 mobilenet-v3-small mobilenet-v3-small-pod4 resnet50 resnet50-16ipu-mk2-recompute resnet50-pipeline4 resnet50-pod4 resnet50-pod64 resnet50_base resnet50_bn_16ipus resnet50_bn_32ipus resnet50_bn_64ipus resnet50_gn_16ipus resnet50_mk2 resnet50_mk2_pipelined resnet50_mk2_pipelined_pod64 resnet50_mk2_pod64 resnet50_mlperf_pod16 resnet50_mlperf_pod16_bs20 resnet50_mlperf_pod16_lars resnet50_mlperf_pod32_lars resnet50_mlperf_pod64_bs20 resnet50_mlperf_pod64_lars resnet8_test resnext101_16ipus shapes-resnet14' ;;
    'completion 0') offered='bash zsh fish' ;;
    'validate '*) offered='/directories' ;;
    'options '*) offered='model resnet_version stem shortcut_type conv_padding input_image_padding norm_type norm_num_groups norm_eps batchnorm_momentum zero_init_last_norm weight_init stable_norm enable_fast_groupnorm full_precision_norm cardinality group_dim expand_ratio widenet dropout_rate block_survival_prob squeeze_excite depth_divisor top_width use_relu width_coefficient depth_coefficient use_bypass proxy_norm proxy_epsilon proxy_recompute data data_dir validation_share image_size num_classes samples dataset_percentage_to_use augment crop_rule use_bbox_info normalization_location normalize_std eight_bit_io dataloader_worker prefetch_depth dataloader_kind dataloader_rebatch_size dataset_cache dataset_cache_mb webdataset_memory_cache_ratio bad_records max_bad_records seed mixup_alpha cutmix_lambda_low cutmix_lambda_high cutmix_version cutmix_disable_prob hostside_image_mixing micro_batch_size gradient_accumulation replicas device_iterations epoch updates stop_after epochs_before lr base_learning_rate_exponent lr_schedule lr_decay lr_epoch_decay lr_share_decay lr_multipliers lr_drops lr_scheduler_freq warmup_epoch poly_lr_decay_power poly_lr_end_ratio abs_end_learning_rate optimizer momentum weight_decay weight_decay_spares rmsprop_decay rmsprop_base_decay_exp optimizer_eps lars_epsilon lars_eeta lars_weight_decay lars_skip_list loss_velocity_scaling_ratio optimizer_state_dtype variable_filter gradient_mean_reduce_re label_smoothing label_smoothing_over loss_scaling initial_loss_scaling auto_loss_scaling on_nonfinite max_skipped precision half_type half_arithmetic half_partial enable_stochastic_rounding enable_fp_exceptions saturate_on_overflow force_weight_to_fp16 force_weight_to_fp32 offload_fp32_weight_copy half_res_training fine_tune_epoch fine_tune_lr fine_tune_micro_batch_size fine_tune_gradient_accumulation fine_tune_first_trainable_layer shards pipeline_splits pipeline_schedule stages_per_device device_mapping sharding_include_filter sharding_exclude_filter enable_recompute recompute_checkpoints offload_optimizer min_remote_tensor_size enable_optimizer_rts accumulator_dtype accumulator_dtype_rules gradient_reduction available_memory_proportion reduction overlap_reduction max_cross_replica_buffer_size max_reduce_many_buffer_size gcl_method gcl_max_broadcast_size bn_span device threads select_devices hosts instances exchange_memory_target compile compile_only model_cache_path force_recompile tmp_execs num_io_tiles enable_conv_dithering gather_conv_output only_use_slic_vmac_16 scheduling_algorithm poplar_sync_configuration offline_target_ipu_version checkpoint_output_path init_path pretrained ckpts_per_epoch epochs_per_ckpt ckpt_epochs_offset keep_last on_save_error weight_avg_strategy weight_avg_n weight_avg_exp_decay norm_statistics ema_decay validation_mode validation_frequency valid_batch_size random_weights repeat latency backend num_inference_thread logs_per_epoch log_freq log_dir name name_suffix progress logs disable_metrics analyze_nans mlperf_logging profile profile_compilation wandb wandb_project wandb_id wandb_weight_histogram' ;;
    esac
}

_convoy_offer() { # offered words, current word
    local candidates=(-W "$1") word
    case $1 in
    /files) candidates=(-f) ;;
    /directories) candidates=(-d) ;;
    esac
    [[ $1 == /* ]] && compopt -o filenames 2>/dev/null
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen "${candidates[@]}" -- "$2")
}

_convoy() {
    local verb=${COMP_WORDS[1]} current=${COMP_WORDS[COMP_CWORD]}
    local option= takes= offered= options= older= index=0 first=2 i
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        _convoy_offer "$_convoy_verbs --help --version" "$current"
        return
    fi
    if [[ $verb == data ]] && ((COMP_CWORD > 2)); then # its actions have their own options
        verb="data ${COMP_WORDS[2]}" first=3
    fi
    for ((i = first; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --) return ;;
        =) option=${COMP_WORDS[i - 1]} takes=one ;; # bash splits --option=value into three words
        -[!0-9.]*)
            option=${COMP_WORDS[i]}
            _convoy_value "$verb" "$option"
            [[ $takes == none ]] && option=
            ;;
        *)
            [[ -z $option ]] && ((index++))
            [[ $takes == many ]] || option=
            ;;
        esac
    done
    if [[ $current == = ]]; then
        option=${COMP_WORDS[COMP_CWORD - 1]} current=
    fi
    if [[ -n $option && $current != -* ]]; then
        _convoy_value "$verb" "$option"
        _convoy_offer "$offered" "$current"
        [[ $takes == many ]] || return
    elif [[ $current != -* ]]; then
        _convoy_positional "$verb" "$index"
        [[ -n $offered ]] && _convoy_offer "$offered" "$current" && return
    fi
    _convoy_options "$verb"
    ((${#COMPREPLY[@]})) || _convoy_offer "$options" "$current"
    ((${#COMPREPLY[@]})) || _convoy_offer "$older" "$current"
}

complete -F _convoy convoy
