import base64
import hashlib
import re

import pytest

from trw_pipeline.reporting.markup import Markup, element, join, page, plain_table, table

EVIL = "<script>alert('x')</script> & \"y\""


def test_text_and_attributes_are_escaped_and_elements_are_not():
    inner = element("b", "<&>")
    assert element("p", "1 < 2", inner, title='a"b<') == '<p title="a&quot;b&lt;">1 &lt; 2<b>&lt;&amp;&gt;</b></p>'


def test_attributes_are_named_as_in_html_and_left_out_where_they_are_not_set():
    made = element("td", 3, class_="number", data_key=1.5, hidden=True, id=None, open=False)
    assert made == '<td class="number" data-key="1.5" hidden>3</td>'


def test_children_may_be_nested_and_empty_elements_have_no_end():
    assert element("p", ["a", [element("br"), None], (x for x in "bc")]) == "<p>a<br>bc</p>"
    assert join(None) == ""


@pytest.mark.parametrize(
    "make", [lambda text: table([text], [[text]], text), lambda text: plain_table([(text, text)], text)]
)
def test_a_table_shows_what_data_is_called_and_does_not_obey_it(make):
    made = make(EVIL)
    assert "<script" not in made
    assert made.count("&lt;script&gt;") == 3, "in the label, a name and a cell"


def test_a_cell_is_sorted_by_its_number_whatever_is_shown():
    made = table(["name", "size"], [["a", ("1,000", 1000.0)], ["b", 2]], "sizes")
    assert re.findall(r'data-key="(\S+)">([^<]+)<', made) == [("1000.0", "1,000"), ("2.0", "2")]
    assert made.count("<button") == 2


def test_a_page_loads_nothing_and_lets_the_browser_run_its_own_script_alone():
    made = page(EVIL, element("p", EVIL))
    scripts = re.findall(r"<script>(.*?)</script>", made, re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', made)[1].replace("&#x27;", "'")
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"(https?:)?//\w|url\(|@import", made.replace(scripts[0], "").replace("<!doctype", ""))
    assert "<title>&lt;script&gt;" in made


def test_only_a_page_that_changes_is_read_again():
    assert 'http-equiv="refresh" content="10"' in page("t", None, 10.0)
    assert "refresh" not in page("t", None).partition("<style>")[0]


def test_style_and_script_can_not_end_their_elements():
    made = page("t", Markup())
    assert made.count("</style>") == made.count("</script>") == 1
