"""What MkDocs asks while it builds the site: links out of docs/ lead somewhere, and result files can be downloaded.

Pages are read in the repository too, where a link to `../src/xshare/router.py` opens the file. The site holds no
source: there such a link becomes the path, as code. Links to `evidence/*.json` stay links, and the site gets the files.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", flags=re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the style, and the result files at the addresses that pages link to."""
    from mkdocs.structure.files import File

    added = {f"evidence/{path.name}": path for path in sorted((ROOT / "evidence").glob("*.json"))}
    added["site.css"] = Path(__file__).with_name("site.css")
    for address, path in added.items():
        files.append(File.generated(config, address, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return for_site(markdown, posixpath.dirname(page.file.src_uri))


def for_site(markdown: str, folder: str) -> str:
    """A page's text, with links that the site cannot follow turned into words. folder: of the page, inside docs"""
    fenced = [match.span() for match in CODE.finditer(markdown) if match[0].startswith("```")]

    def replace(match: re.Match[str]) -> str:
        if any(start <= match.start() < end for start, end in fenced):
            return match[0]
        place = posixpath.normpath(posixpath.join("docs", folder, match["target"]))  # from the repository's root
        if place.startswith("docs/"):
            return match[0]
        if place.startswith("evidence/") and place.endswith(".json"):
            return f"[{match['text']}]({posixpath.relpath(place, folder or '.')})"
        text = match["text"].strip("`")
        return f"`{place}`" if text in place else f"{match['text']} (`{place}`)"

    return LINK.sub(replace, markdown)
