"""A worker extension (--worker-extension-cls) for a server under test: it counts steps, and is asked over HTTP.

The count is independent of XShare's own; both must agree.
"""

from __future__ import annotations

from typing import Any


class Counting:
    model_runner: Any
    steps = 0

    def count_steps(self) -> None:
        """Count every step from now on."""
        native = self.model_runner.execute_model

        def execute_model(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            self.steps += scheduled.total_num_scheduled_tokens > 0
            return native(scheduled, *args, **kwargs)

        self.model_runner.execute_model = execute_model

    def steps_seen(self) -> int:
        return int(self.steps)
