"""Result files: `{"provenance": {...}, "rows": [flat records]}`, the one form every table and plot is made from."""

from xshare.results.file import Row, as_meant, check_replaced, sha256, write_result
from xshare.results.resumable import Results, check_continued, read_earlier
from xshare.results.stamp import provenance

__all__ = [
    "Results",
    "Row",
    "as_meant",
    "check_continued",
    "check_replaced",
    "provenance",
    "read_earlier",
    "sha256",
    "write_result",
]
