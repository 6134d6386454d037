"""XShare inside real engines. What acts on a live Transformers model is imported when it is asked for."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xshare.engines.transformers import apply, layout, protect, remove, stats

__all__ = ["apply", "layout", "protect", "remove", "stats"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from xshare.engines import transformers

        return getattr(transformers, name)
    raise AttributeError(f"module 'xshare.engines' has no attribute {name!r}")
