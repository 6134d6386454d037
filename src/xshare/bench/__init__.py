"""Speed: paired, interleaved runs of native routing, a no-op control and policies in one engine."""
