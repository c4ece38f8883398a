"""What a run would cost, before it runs: `--dry-run` and `--preview` of `submit` and `run`.

- `forecast_options`: the options.
- `row_sample`: which rows are counted or run.
- `model_tokenizer`: the tokenizer and the chat template of a model, without torch.
- `token_limits`: the most output tokens of a request, and the tokens that a model allows.
- `estimates`: sums over all rows with intervals, from some rows.
- `dry_run` counts tokens and reports. `preview` runs a sample.
- `worker_devices`: the devices of the live workers.
- `prediction` keeps what a preview predicts, and compares it with the run.

`submission.py` calls `dry_run` and `preview` once the input has passed its checks.
"""
