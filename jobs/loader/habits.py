"""Words of other trainers that people write by habit, with what a job says instead."""

OTHER_TRAINERS = {
    **dict.fromkeys(("lr", "learning_rate", "lr_rate"), "train.optimizer.lr"),
    **dict.fromkeys(("num_train_epochs", "num_epochs", "n_epochs", "max_steps"), "train.epochs"),
    **dict.fromkeys(("bf16", "fp16", "tf32"), "train.precision: bf16, fp16, tf32 or auto"),
    **dict.fromkeys(
        ("per_device_train_batch_size", "micro_batch", "batch_size"),
        "train.global_batch_size, the samples of a step over all workers",
    ),
    "gradient_accumulation_steps": (
        "train.global_batch_size, which passes are accumulated for as needed"
    ),
    **dict.fromkeys(("lora", "peft", "peft_config"), "model.adapter: {type: lora}"),
    **dict.fromkeys(("lora_r", "lora_rank"), "model.adapter.r"),
    "lora_alpha": "model.adapter.alpha",
    "lora_dropout": "model.adapter.dropout",
    "lora_target_modules": "model.adapter.target_modules",
    **dict.fromkeys(("weight_decay", "wd"), "train.optimizer.weight_decay"),
    "max_grad_norm": "train.optimizer.max_grad_norm",
    **dict.fromkeys(("max_seq_length", "sequence_len", "cutoff_len"), "data.max_length"),
    **dict.fromkeys(("model_name_or_path", "base_model"), "model.base"),
    **dict.fromkeys(("gpus", "gpu", "accelerators"), "resources.any_of: [{accelerators: T4:1}]"),
    **dict.fromkeys(
        ("eval_steps", "eval_strategy", "evaluation_strategy"), "train.eval.every, such as 100steps"
    ),
    **dict.fromkeys(("evaluation", "evaluate"), "train.eval, such as {every: 100steps}"),
    **dict.fromkeys(("save_steps", "save_strategy"), "train.checkpoint.every, such as 100steps"),
    "save_total_limit": "train.checkpoint.keep",
    "torch_compile": "train.compile",
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler"), "train.lr_schedule.type"),
    "lr_scheduler_kwargs": "train.lr_schedule.power or train.lr_schedule.floor",
    **dict.fromkeys(("optim", "optimizer_type"), "train.optimizer.name"),
    **dict.fromkeys(
        ("early_stopping_patience", "early_stop_patience"), "train.early_stopping.patience"
    ),
    **dict.fromkeys(
        ("metric_for_best_model", "load_best_model_at_end", "greater_is_better"),
        "train.early_stopping.metric",
    ),
    **dict.fromkeys(("layer_decay", "llrd"), "train.optimizer.layerwise_lr_decay"),
    **dict.fromkeys(("min_lr_rate", "min_lr_ratio", "min_lr"), "train.lr_schedule.floor"),
    **dict.fromkeys(("warmup_ratio", "warmup_steps"), "train.lr_schedule.warmup_ratio"),
    "sample_packing": "data.packing",
    "mlm_probability": "data.mask_share",
    "label_smoothing_factor": "data.label_smoothing",
    "problem_type": "data.problem",
    "max_source_length": "data.max_length",
    "val_max_target_length": "data.max_target_length",
    "source_prefix": "data.prefix",
    **dict.fromkeys(("num_beams", "generation_num_beams"), "data.generate.num_beams"),
    "generation_max_length": "data.generate.max_new_tokens",
    "predict_with_generate": "train.eval.metrics, such as [rougeL]",
    **dict.fromkeys(("lm_eval", "lm_eval_tasks"), "train.eval.harness, such as [gsm8k]"),
    **dict.fromkeys(("deepspeed", "fsdp"), "train.strategy: zero2 or zero3"),
    "report_to": "tracking.mlflow.uri",
    "seed": "seed at the top of the file",
    "output_dir": "storage",
}
"""Fields of the Trainer, Axolotl, LLaMA-Factory and SkyPilot with the field of the same meaning."""

NOT_CHOSEN = {
    **dict.fromkeys(
        ("betas", "adam_beta1", "adam_beta2", "beta1", "beta2"),
        "the betas of AdamW are 0.9 and 0.999",
    ),
    **dict.fromkeys(("adam_epsilon", "eps", "epsilon"), "the epsilon of AdamW is 1e-8"),
    "per_device_eval_batch_size": "the batch of an evaluation follows from the task",
    "group_by_length": "rows are batched by length",
    "dataloader_num_workers": "rows are tokenised before training",
    **dict.fromkeys(("logging_steps", "logging_strategy"), "losses are logged by themselves"),
    "do_train": "`winnow train` and `winnow run` train",
    "do_eval": "the end of training is always evaluated",
}
"""Fields of the Trainer that a job cannot choose, with what is done instead."""

OTHER_VALUES = {
    **dict.fromkeys(
        (
            *("adam", "adamw-hf", "adamw-torch", "adamw-torch-fused", "adamw-apex-fused"),
            *("adamw-8bit", "adamw-bnb-8bit", "paged-adamw", "paged-adamw-8bit"),
            *("paged-adamw-32bit", "fused-adamw"),
        ),
        "adamw",
    ),
    **dict.fromkeys(("cosine-with-restarts", "cosine-with-min-lr", "cosine-with-warmup"), "cosine"),
    "linear-with-warmup": "linear",
    **dict.fromkeys(("constant-with-warmup", "constant-lr"), "constant"),
    **dict.fromkeys(("float32", "32", "no"), "fp32"),
    **dict.fromkeys(("float16", "half", "16"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf16-mixed"), "bf16"),
    **dict.fromkeys(("fsdp", "full-shard", "zero-3", "deepspeed"), "zero3"),
}
"""Values of other trainers, with hyphens, and the value of a job that is nearest to them."""

SHORT_FORMS = {
    "train.optimizer": "name",
    "train.lr_schedule": "type",
    "train.eval": "every",
    "train.checkpoint": "every",
    "train.early_stopping": "patience",
}
"""Sections that people write as one value, with the field which that value is for."""
