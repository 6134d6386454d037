"""The page in a real browser: it shows, says nothing in red, asks for nothing, and fits, in light and dark."""

import headless_chromium
import pytest
import small_result_files as results
from report_pages import EVIDENCE, report_page, sections


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if headless_chromium.find() is None:
        pytest.skip("no Chromium on this machine")
    opened = headless_chromium.Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    results.one_of_each(folder)
    evil = "<script>document.title = 'taken'</script><img src=http://127.0.0.1:9/x onerror=\"document.title='taken'\">"
    results.write(folder, "evil.json", [row | {"policy": row["policy"] + evil} for row in results.demo_rows()])
    worth = tmp_path_factory.mktemp("worth")
    results.write(worth, "bench.json", results.timed(results.SPEEDS))
    results.write(worth, "quality.json", results.answered(results.LOSSES))
    files = {}
    for name, source in (("small", folder), ("evidence", EVIDENCE), ("worth", worth)):
        files[name] = folder / f"{name}.html"
        files[name].write_text(report_page(source))
    return files


def test_the_evidence_has_every_section(pages):  # here, where its page is drawn: that takes long
    assert sections(pages["evidence"].read_text()) == ["pareto", "layers", "law", "stairs", "curve", "tables"]


UNFOLD = "document.querySelectorAll('details').forEach(folded => folded.open = true)"


@pytest.mark.parametrize("width", [1280, 390, 360])
@pytest.mark.parametrize("name", ["small", "evidence"])
def test_a_page_is_readable_in_both_colour_schemes(name, width, chromium, pages):
    chromium.open(pages[name], width, "light")
    for scheme in ("light", "dark"):  # no script looks at it: a page that is open changes as one that is loaded
        chromium.prefer(scheme)
        check_folded(chromium, width)
    chromium.value(UNFOLD)
    for scheme in ("dark", "light"):
        chromium.prefer(scheme)
        check_unfolded(chromium, width)
        paper, ink = chromium.value(
            "[getComputedStyle(document.documentElement).backgroundColor,"
            " getComputedStyle(document.querySelector('.plot text')).fill]"
        )
        assert (brightness(paper) > brightness(ink)) == (scheme == "light")


def check_folded(chromium, width):
    assert chromium.errors() == []
    assert chromium.requests() == []
    assert chromium.value("document.title") == "Results"
    assert chromium.value("document.scripts.length") == 0
    assert chromium.value("document.documentElement.scrollWidth") <= width
    answered = chromium.value("document.querySelector('.answer').getBoundingClientRect().bottom")
    drawn = chromium.value("document.querySelector('.plot').getBoundingClientRect().bottom")
    assert answered < 900 / 2  # the answer at once, on a large screen with its picture
    assert drawn < (900 if width > 1000 else 1800)


def check_unfolded(chromium, width):
    assert chromium.errors() == []
    assert chromium.requests() == []
    assert chromium.value("document.documentElement.scrollWidth") <= width
    boxes = chromium.value(
        "[...document.querySelectorAll('.plot svg')].map(svg => svg.getBoundingClientRect())"
        ".map(box => [box.width, box.height, box.right])"
    )
    assert len(boxes) >= 6
    assert all(w > 250 and h > 150 and right <= width for w, h, right in boxes)


def brightness(colour):
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))


@pytest.mark.parametrize("name", ["small", "evidence", "worth"])
def test_nothing_in_a_plot_covers_a_name_or_is_cut_off(name, chromium, pages):
    chromium.open(pages[name], 1280, "light")
    chromium.value(UNFOLD)
    over = chromium.value(
        "[...document.querySelectorAll('.plot svg')].flatMap(svg => {"
        " const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);"
        " return boxes.flatMap(([name, a], n) => boxes.slice(n + 1).filter(([, b]) => Math.min(a.right, b.right) >"
        " Math.max(a.left, b.left) + 1 && Math.min(a.bottom, b.bottom) > Math.max(a.top, b.top) + 2)"
        ".map(([other]) => name + ' over ' + other)) })"
    )
    assert over == []
    cut_off = chromium.value(
        "[...document.querySelectorAll('.plot svg')].flatMap(svg => { const all = svg.getBoundingClientRect();"
        " return [...svg.querySelectorAll('text')].filter(text => { const box = text.getBoundingClientRect();"
        " return box.left < all.left || box.right > all.right || box.top < all.top || box.bottom > all.bottom })"
        ".map(text => text.textContent) })"
    )
    assert cut_off == []
    outside = chromium.value(
        "[...document.querySelectorAll('.plot svg')].flatMap(svg => { const frame = svg.querySelector('.axis')"
        ".getBoundingClientRect(); return [...svg.querySelectorAll('.point')].map(p => p.getBoundingClientRect())"
        ".filter(p => p.left < frame.left || p.right > frame.right + 1 || p.top < frame.top || p.bottom > frame.bottom)"
        ".map(p => p.toJSON()) })"
    )
    assert outside == []
    legends = chromium.value("[...document.querySelectorAll('.legend')].map(legend => legend.textContent)")
    assert legends
    assert not any("…" in legend for legend in legends)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_table_that_goes_on_says_so_and_keeps_its_names_in_sight(width, chromium, pages):
    chromium.open(pages["evidence"], width, "light")
    chromium.value(UNFOLD)
    wide = chromium.value(
        "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).map(box => {"
        " box.scrollLeft = 400; const style = getComputedStyle(box);"
        " return [style.backgroundImage.split('gradient').length, style.backgroundAttachment,"
        " box.querySelector('tbody th').getBoundingClientRect().left"
        " - box.getBoundingClientRect().left] })"
    )
    assert wide
    # A shade at the edge, and a cover that scrolls along: it is gone where the table ends.
    assert all(shades == 3 and attached == "local, scroll" and abs(left) < 2 for shades, attached, left in wide)


HEIGHT = "document.querySelector('details').getBoundingClientRect().height"


def test_provenance_opens_without_a_script(chromium, pages):
    chromium.open(pages["small"], 390, "light")
    assert chromium.value("document.scripts.length") == 0
    closed = chromium.value(HEIGHT)
    chromium.value("document.querySelector('summary').click()")
    assert chromium.value(HEIGHT) > closed + 100
    assert chromium.value("document.documentElement.scrollWidth") <= 390


def test_print_shows_what_is_folded_on_the_screen(chromium, pages):
    chromium.open(pages["small"], 800, "light")
    closed = chromium.value(HEIGHT)
    chromium.ask("Emulation.setEmulatedMedia", media="print")
    assert chromium.value(HEIGHT) > closed + 100
    boxes = chromium.value("[...document.querySelectorAll('.scroll')].map(box => box.scrollHeight - box.clientHeight)")
    assert max(boxes) == 0  # every row of every table
    chromium.ask("Emulation.setEmulatedMedia", media="")
