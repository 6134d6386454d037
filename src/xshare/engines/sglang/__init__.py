"""XShare inside SGLang: a plugin. `plugin.register` is the entry point; docs/sglang.md is the guide."""
