"""A page of the report, and what is in it."""

from html.parser import HTMLParser
from pathlib import Path

from xshare.report.page import page
from xshare.report.result_files import read_folder

EVIDENCE = Path(__file__).parents[2] / "evidence"
SECTIONS = ("pareto", "layers", "law", "stairs", "curve", "tables", "notes")


def report_page(folder):
    return page(*read_folder(folder), "Results")


def sections(text):
    return [name for name in SECTIONS if f'<section id="{name}"' in text]


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
