"""Kinds of models that engine tests are run on."""

from tiny_vllm_models import monolithic, serves_gpt_oss

KINDS = ["qwen3", "olmoe", "mixtral", *(["gpt_oss"] if serves_gpt_oss() else []), "deepseek"]
if not monolithic():
    KINDS.append("deepseek_groups")  # a monolithic kernel judges groups itself: such layers are skipped (test_refusals)
