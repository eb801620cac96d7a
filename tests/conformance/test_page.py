"""The page of a report, opened in a real browser: what it shows, how it is worked by keyboard, that it asks nothing."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from conformance.report.page import embedded, page
from conformance.report.stream import Output
from tests.browser import WITHOUT, browser, executable
from tests.reports import diagnosis, inapplicable, made, result

HOSTILE = "</script><img src=x onerror=alert(1)> & \u2028 'quoted'"
LINES = [
    result(0, used=0.25),
    result(1, "fail", 3.0, message=f"y is wrong, first at b=0, t=2 {HOSTILE}"),
    result(2, "known-failure", 2.0, reason="listed", link="https://example.org/1"),
    result(3, operation="ssd.step", case="ssd.step/b1,g1,h1,p1,n1/plain/gentle/s0", used=0.0),
    result(4, contract="fp32/state=bf16/sequential", used=float("inf")),
    inapplicable(reason=f"not declared {HOSTILE}"),
    diagnosis(looks_like="equals the fault keeps_rejected", diverges="conv, token 2, channel 1"),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture
def opened(chromium: Browser, tmp_path: Path) -> Iterator[Page]:
    tab = open_page(chromium, tmp_path, LINES)
    yield tab
    assert tab.said == [], "the browser complained"  # type: ignore[attr-defined]
    tab.close()


def open_page(chromium: Browser, folder: Path, lines: list[object], scheme: str = "light") -> Page:
    """The page of these lines, with what the browser says of it and what it asks for."""
    (folder / "report.html").write_text(page(made(folder / "report.jsonl", lines)), encoding="utf-8")  # type: ignore[arg-type]
    tab = chromium.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 900})  # type: ignore[arg-type]
    tab.said, tab.asked = [], []  # type: ignore[attr-defined]
    tab.on("console", lambda message: tab.said.append(message.text))  # type: ignore[attr-defined]
    tab.on("pageerror", lambda error: tab.said.append(str(error)))  # type: ignore[attr-defined]
    tab.on("dialog", lambda dialog: tab.said.append("an alert"))  # type: ignore[attr-defined]
    tab.on("request", lambda request: tab.asked.append(request.url))  # type: ignore[attr-defined]
    tab.goto((folder / "report.html").as_uri())
    return tab


def test_the_matrix_is_there_and_a_cell_leads_to_its_cases(opened: Page) -> None:
    cell = opened.get_by_role("button", name="ssd.scan of kernel, fp32/sequential")
    assert cell.inner_text().split() == ["1/3", "1", "fail,", "1", "known"]
    cell.click()
    shown = opened.get_by_role("dialog", name="ssd.scan of kernel")
    assert shown.is_visible()
    verdicts = shown.locator("summary .tag").all_inner_texts()
    assert verdicts == ["fail", "known-failure", "pass"], "the worst first"
    first = shown.locator("details").first
    assert first.get_attribute("open") is not None
    expect(first).to_contain_text(HOSTILE.replace("\u2028", "")[:20])  # filled by its toggle event: waits for it
    expect(first.locator("tbody td")).to_have_text(["y", "3", "0.000003", "0.000001", "first at b=0, t=2", "", ""])
    assert first.locator(".rerun code").inner_text() == LINES[1].rerun  # type: ignore[union-attr]
    shown.get_by_label("Show").select_option("pass")
    assert shown.locator("summary .tag").all_inner_texts() == ["pass"]


def test_the_page_is_worked_by_keyboard(opened: Page) -> None:
    step = opened.get_by_role("button", name="ssd.step of kernel")
    scan = opened.get_by_role("button", name="ssd.scan of kernel, fp32/sequential")
    for _ in range(20):
        opened.keyboard.press("Tab")
        if scan.evaluate("e => e === document.activeElement"):
            break
    assert scan.evaluate("e => e === document.activeElement"), "the matrix is not reached by Tab"
    opened.keyboard.press("ArrowRight")
    assert step.evaluate("e => e === document.activeElement")
    opened.keyboard.press("ArrowLeft")
    opened.keyboard.press("Enter")
    assert opened.get_by_role("dialog").is_visible()
    assert opened.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert opened.url.endswith("#cell-0")
    opened.keyboard.press("Escape")
    assert not opened.locator("dialog").is_visible()
    assert scan.evaluate("e => e === document.activeElement"), "the focus goes back to where it was"


def test_a_link_to_a_cell_opens_it_and_cases_are_found_by_words(opened: Page) -> None:
    opened.goto(opened.url + "#cell-1")
    opened.reload()
    assert opened.get_by_role("dialog", name="ssd.step of kernel").is_visible()
    opened.keyboard.press("Escape")
    opened.get_by_role("searchbox").fill("scan FAIL")
    assert opened.locator("#found h2").inner_text() == "2 cases found"
    opened.get_by_role("searchbox").fill("")
    assert not opened.locator("#found").is_visible()


def test_ways_of_failing_left_out_and_environment_are_told_without_the_script(chromium: Browser, tmp_path: Path) -> None:
    made(tmp_path / "report.jsonl", LINES)  # type: ignore[arg-type]
    plain = chromium.new_context(java_script_enabled=False).new_page()
    (tmp_path / "report.html").write_text(page(made(tmp_path / "report.jsonl", LINES)), encoding="utf-8")  # type: ignore[arg-type]
    plain.goto((tmp_path / "report.html").as_uri())
    plain.locator("article.way summary").click()
    told = plain.locator("main").inner_text()
    for said in ("equals the fault keeps_rejected", "conv, token 2, channel 1", "need JavaScript", "numpy", "1/3"):
        assert said in told
    assert plain.locator("svg.plot path.beyond").count() == 2


PICTURE = ("h 2 by t 4", "....", "..19")
WRONG = Output(
    name="y", state=False, utilisation=float("inf"), error=0.5, bound=0.0, first={"t": 2}, expected=0.25, got=0.75,
    picture=PICTURE,
)  # fmt: skip
NUMBERS = [
    result(0, used=0.5),
    result(1, used=0.0),
    result(2, "fail", 3.0),
    result(3, "fail", outputs=(WRONG,)),
    result(4, "fail", float("nan")),
    result(5, "fail", outputs=(), failing="error", message="TypeError: no kernel"),
    diagnosis(output=WRONG, facts={"behaves": "as if B were 0", "passes": "with D=off"}),
]


def test_every_number_is_right_and_the_worst_comes_first(chromium: Browser, tmp_path: Path) -> None:
    tab = open_page(chromium, tmp_path, NUMBERS)  # type: ignore[arg-type]
    tab.get_by_role("button", name="ssd.scan of kernel").click()
    shown = tab.get_by_role("dialog")
    used = shown.locator("summary .used").all_inner_texts()
    assert used == ["NaN", "must be equal, and is not", "3 of its bound", "error", "0.5 of its bound", "exact"]
    assert "exact" not in used[:4], "a case that fails is not exact"
    second = shown.locator("details").nth(1)
    second.locator("summary").click()
    expect(second.locator("tbody td")).to_have_text(
        ["y", "∞", "0.5", "0", "first at t=2", "0.25", "0.75"]
    )  # after its toggle event
    assert tab.said == []  # type: ignore[attr-defined]
    tab.close()


def test_a_failing_case_opens_with_a_picture_of_where_it_is_wrong(chromium: Browser, tmp_path: Path) -> None:
    tab = open_page(chromium, tmp_path, NUMBERS)  # type: ignore[arg-type]
    way = tab.locator("article.way").first
    assert way.get_by_role("img", name="where y is wrong: h 2 by t 4").is_visible()
    assert "as if B were 0" in way.inner_text()
    assert "with D=off" not in way.inner_text()
    way.locator("summary").click()
    assert "with D=off" in way.inner_text()
    tab.get_by_role("button", name="ssd.scan of kernel").click()
    case = tab.get_by_role("dialog").locator("details").nth(1)
    case.locator("summary").click()
    drawn = case.get_by_role("img", name="where y is wrong: h 2 by t 4")
    expect(drawn.locator("rect")).to_have_count(8)  # drawn after the toggle event: waits for it
    expect(drawn.locator("rect.w1, rect.w9")).to_have_count(2)
    tab.close()


def test_rows_and_cases_are_filtered(opened: Page) -> None:
    assert opened.locator(".matrix tbody tr:not(.adapter):visible").count() == 2
    opened.locator("#rows").select_option("bad")
    assert opened.locator(".matrix tbody tr:not(.adapter):visible").count() == 1
    opened.get_by_role("button", name="ssd.scan of kernel, fp32/sequential").click()
    shown = opened.get_by_role("dialog")
    shown.get_by_label("with").fill("s2")
    assert shown.locator("summary .tag").all_inner_texts() == ["known-failure"]
    shown.get_by_label("with").fill("nothing has this")
    assert shown.locator("summary").count() == 0


def test_on_paper_everything_is_dark_on_light_and_open(chromium: Browser, tmp_path: Path) -> None:
    tab = open_page(chromium, tmp_path, LINES, "dark")  # type: ignore[arg-type]
    assert not tab.locator("#leftout details").first.evaluate("e => e.open")
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.locator("body").evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
    assert not tab.locator("nav").is_visible()
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("#leftout details").first.evaluate("e => e.open")
    tab.close()


def test_the_page_asks_for_nothing_else(opened: Page) -> None:
    opened.get_by_role("button", name="ssd.step of kernel").click()
    asked = opened.asked  # type: ignore[attr-defined]
    assert len(asked) == 1, asked
    text = opened.content()
    assert not re.search(r"""(?:src|href)=["'](?!#)""", text)
    assert "url(" not in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible_in_light_and_dark(chromium: Browser, tmp_path: Path, scheme: str) -> None:
    """By the rules of axe-core, contrast among them: the page, and the cases of a cell."""
    tab = open_page(chromium, tmp_path, LINES, scheme)
    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
    closed = Axe().run(tab, options=options)
    assert closed.violations_count == 0, closed.generate_report()
    tab.get_by_role("button", name="ssd.scan of kernel, fp32/sequential").click()
    found = Axe().run(tab, options=options)
    assert found.violations_count == 0, found.generate_report()
    tab.close()


def test_axe_sees_a_planted_fault(chromium: Browser) -> None:
    tab = chromium.new_page()
    tab.set_content('<html lang="en"><title>t</title><p style="color:#bbb;background:#fff">pale</p><button></button>')
    assert {v["id"] for v in Axe().run(tab).response["violations"]} >= {"color-contrast", "button-name"}
    tab.close()


def test_five_thousand_cases_open_quickly(chromium: Browser, tmp_path: Path) -> None:
    lines = [result(n, used=n / 5000, subject=f"kernel {n % 50}") for n in range(5000)]
    tab = open_page(chromium, tmp_path, lines)  # type: ignore[arg-type]
    size = (tmp_path / "report.html").stat().st_size
    assert size < 2_000_000, f"{size} bytes"
    spent = tab.evaluate(
        "() => { const t = performance.now(); document.querySelector('[data-cell=\"49\"]').click();"
        " return performance.now() - t; }"
    )
    assert tab.locator("dialog li").count() == 100
    tab.keyboard.press("Escape")
    tab.get_by_role("searchbox").fill("s4999")
    assert tab.locator("#found h2").inner_text() == "1 case found"
    assert spent < 1000, f"{spent} ms"
    tab.close()


def test_data_cannot_end_the_element_it_stands_in() -> None:
    assert "<" not in embedded([HOSTILE, {"a": "<!--"}])


def test_a_machine_without_a_browser_fails_and_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(WITHOUT, raising=False)
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        executable()
