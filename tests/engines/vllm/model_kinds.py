"""Kinds of models that engine tests are run on."""

from tiny_vllm_models import monolithic

KINDS = ["qwen3", "olmoe", "mixtral", "gpt_oss", "deepseek"]
if not monolithic():
    KINDS.append("deepseek_groups")  # a monolithic kernel judges groups itself: such layers are skipped (test_refusals)
