"""Result files: `{"provenance": {...}, "rows": [flat records]}`. Every table and plot is made from this form."""

from xshare.results.file import Row, check_replaceable, sha256, with_current_policies, write_result
from xshare.results.resumable import Results, check_resumable, read_earlier
from xshare.results.stamp import provenance

__all__ = [
    "Results",
    "Row",
    "check_replaceable",
    "check_resumable",
    "provenance",
    "read_earlier",
    "sha256",
    "with_current_policies",
    "write_result",
]
