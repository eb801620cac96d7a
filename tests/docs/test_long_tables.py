"""Long tables of the site have a filter that hides rows; on registers they are folded. Short ones stay as they are."""

from types import SimpleNamespace

from tests.browser import browser
from tests.docs.site import LONG, on_page_content


def table(rows: int) -> str:
    body = "".join(f"<tr><td>fault {row}</td></tr>" for row in range(rows))
    return f"<table><thead><tr><th>name</th></tr></thead><tbody>{body}</tbody></table>"


def shown(rows: int, path: str = "evidence/faults.md") -> str:
    return on_page_content(f"<p>a</p>{table(rows)}<p>b</p>", SimpleNamespace(file=SimpleNamespace(src_path=path)))


def test_a_short_table_stays_as_it_is() -> None:
    assert shown(LONG) == f"<p>a</p>{table(LONG)}<p>b</p>"


def test_a_long_table_is_folded_on_a_register_only() -> None:
    assert f"<details><summary>{LONG + 1} rows</summary>" in shown(LONG + 1)
    assert "<details>" not in shown(LONG + 1, "reference/contract.md")
    assert all(table(LONG + 1) in shown(LONG + 1, path) for path in ("evidence/faults.md", "reference/contract.md"))


def test_the_filter_hides_the_rows_without_its_text() -> None:
    with browser() as started:
        page = started.new_page()
        page.set_content(shown(100, "reference/contract.md"))
        page.get_by_role("searchbox").fill("FAULT 9")
        assert page.locator("tbody tr:visible").count() == 11
        page.get_by_role("searchbox").fill("")
        assert page.locator("tbody tr:visible").count() == 100
