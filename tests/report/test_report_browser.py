"""The page in a real browser: it draws, answers to mouse and keys, and nothing in it can run.

Every page is opened with the network watched: a console error, a script error, a refused policy or
any request fails the test that opened it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bestofk.reports import load, make
from report_files import make_file, make_run, opened, wait_until, write_lines

ATTACKS = (
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 2</script>",
    '<img src=x onerror="window.pwned = 3">',
    '<svg onload="window.pwned = 4"><script>window.pwned = 5</script></svg>',
    '<iframe srcdoc="<script>parent.pwned = 6</script>"></iframe>',
    '<a href="javascript:window.pwned = 7" onmouseover="window.pwned = 8">x</a>',
    "<style>body { display: none }</style><link rel=stylesheet href=//example.org/x.css>",
    "]]><!--<script>window.pwned = 9</script>--> &lt;script&gt; \u2028 \u2029 {{script}}",
    "right \u202e\u2066to left\u2069 \x00 nul \x1b[31m \ufeff \u200b end",
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    files = [str(make_file(folder, policy, graded=True)) for policy in ("base", "sharp", "wide")]
    run = make_run(folder / "trained")
    (run / "evaluations").mkdir()
    Path(files[2]).rename(run / "evaluations" / "000005.jsonl")
    sources = load([*files[:2], str(run)])
    return make(sources, folder / "report.html", created="then", resamples=400).page


COLOURS = """(i) => {
  const c = document.querySelectorAll("canvas")[i];
  const pixels = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
  return new Set(new Uint32Array(pixels.buffer)).size;
}"""
NAMELESS = """() => {
  const named = (e) => e.textContent.trim() || e.labels?.length || e.getAttribute("aria-label")
    || e.getAttribute("aria-labelledby");
  const all = [...document.querySelectorAll("button, select, input, [tabindex='0']")];
  return all.filter((e) => !named(e)).map((e) => e.outerHTML);
}"""
TWICE = """() => {
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  return ids.filter((id, i) => ids.indexOf(id) !== i);
}"""
FITTED = """() => [...document.querySelectorAll(".chart")].every((host) =>
  Math.abs(host.querySelector("canvas").offsetWidth - host.clientWidth) <= 1)"""
HANDLERS = """() => [...document.querySelectorAll("*")].flatMap((e) => [...e.attributes])
  .filter((a) => a.name.startsWith("on") || /^javascript:/i.test(a.value)).map((a) => a.name)"""


def test_every_section_is_there_and_every_chart_painted(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        assert page.locator("section h2").all_inner_texts() == [
            "Best of k", "Summary", "Difference", "Problem by problem", "Diversity", "Training",
            "Samples", "Settings", "Methods and sources",
        ]  # fmt: skip
        charts = page.locator("canvas").count()
        assert charts == page.locator(".chart").count() >= 11
        assert min(page.evaluate(COLOURS, i) for i in range(charts)) > 8
        titles = page.locator("figure h3").all_inner_texts()
        numbers = [int(re.match(r"Figure (\d+)\.", title)[1]) for title in titles]  # type: ignore[index]
        assert numbers == list(range(1, len(titles) + 1))
        for facts in page.locator("figure .facts").all_inner_texts():
            assert re.search(r"\bn = ", facts), facts
            assert re.search(r"\bk = |objective max@8|problems that every run has", facts), facts
            assert re.search(r"\d problems?\b|problems per step", facts), facts
            assert re.search(r"\bseeds? ", facts), facts


def test_the_first_screen_and_the_tables_hold_the_data(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        data = json.loads(page.locator("#data").text_content())
        lines = page.locator(".verdicts li").all_inner_texts()
        assert lines == data["verdicts"]
        assert all(re.search(r"against base: [+−]0\.\d{3} at max@1", line) for line in lines)
        chart = page.locator("#coverage .chart").first.bounding_box()
        assert chart["y"] < 700
        assert chart["width"] > 900
        pairs = page.locator("#difference select option").all_inner_texts()
        assert len([pair for pair in pairs if "pass@k" in pair]) == 3  # any two of three runs
        curve = data["measures"][0]["curves"][1]
        row = page.locator("#summary .broad tbody tr").nth(1).inner_text()
        for k in data["summary_k"]:
            assert f"{curve['mean'][curve['k'].index(k)]:.3f}" in row
        first = page.locator("#coverage figure").first
        first.locator("summary").click()
        first.locator("tbody td").first.wait_for()  # the table is drawn when it is opened
        cells = first.locator("tbody tr").nth(0).locator("td").all_inner_texts()
        assert (cells[0], cells[4]) == ("1", f"{curve['mean'][0]:.3f}")


def test_samples_show_prompts_and_come_by_disagreement(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        data = json.loads(page.locator("#data").text_content())
        gaps = {}
        for problem in data["samples"]["problems"]:
            shares = [g["passed"] / g["scored"] for g in problem["runs"] if g["scored"]]
            gaps[data["per_problem"]["ids"][problem["problem"]]] = max(shares) - min(shares)
        shown = page.locator("#samples .problems .id").all_inner_texts()
        assert [gaps[name] for name in shown] == sorted((gaps[n] for n in shown), reverse=True)
        assert page.locator("#samples .problems .opening").first.inner_text().strip()
        blocks = page.locator("#samples .block")
        places = [blocks.nth(i).bounding_box() for i in range(blocks.count())]
        assert len({round(place["y"]) for place in places}) == 1  # side by side


def test_hover_and_arrow_keys_read_the_values(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        data = json.loads(page.locator("#data").text_content())
        curves = data["measures"][0]["curves"]
        chart = page.locator("#coverage .chart").first
        chart.scroll_into_view_if_needed()
        over = chart.locator(".u-over").bounding_box()
        page.mouse.move(over["x"] + over["width"] - 2, over["y"] + 40)
        tip = chart.locator(".tip")
        tip.wait_for(state="visible")
        said = tip.inner_text()
        assert "k = 16" in said
        for curve in curves:
            assert f"{curve['mean'][-1]:.3f} [{curve['low'][-1]:.3f}, " in said
        page.mouse.move(5, 5)
        tip.wait_for(state="hidden")
        chart.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        spoken = page.locator("#live").inner_text()
        assert spoken.startswith("k = 2:")
        assert f"{curves[0]['mean'][1]:.3f}" in spoken
        page.keyboard.press("End")
        assert page.locator("#live").inner_text().startswith("k = 16:")
        page.keyboard.press("Escape")
        tip.wait_for(state="hidden")


def test_toggling_a_run_hides_it_in_every_figure(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        buttons = page.locator('.legend button[data-run="1"]')
        buttons.first.focus()
        page.keyboard.press("Enter")
        states = {button.get_attribute("aria-pressed") for button in buttons.all()}
        assert states == {"false"}
        chart = page.locator("#coverage .chart").first
        chart.scroll_into_view_if_needed()
        over = chart.locator(".u-over").bounding_box()
        page.mouse.move(over["x"] + 60, over["y"] + 40)
        tip = chart.locator(".tip")
        tip.wait_for(state="visible")
        assert tip.locator(".tag").all_inner_texts() == ["A", "C"]


def test_choosers_change_bands_pairs_and_k(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        facts = page.locator("#coverage figure .facts").first
        assert "intervals at each k" in facts.inner_text()
        page.get_by_label("Shaded").select_option(label="these problems only")
        assert "for this fixed set of problems" in facts.inner_text()
        page.get_by_label("Compare").select_option(label="C against A: max@k")
        title = page.locator("#difference figure h3").first.inner_text()
        assert title.endswith("C − A, paired by problem")
        scatter = page.locator("#problems")
        scatter.get_by_label("k", exact=True).select_option(label="16")
        assert scatter.locator(".facts").first.inner_text().startswith("k = 16 · 24 problems")


def test_samples_are_filtered_and_the_best_of_k_marked(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        data = json.loads(page.locator("#data").text_content())
        samples = page.locator("#samples")
        entries = samples.locator(".problems li")
        assert entries.count() == 24
        samples.get_by_label("Status").select_option(label="correct")
        right = data["samples"]["statuses"].index("correct")
        solved = sum(
            any(item["s"] == right for group in one["runs"] for item in group["items"])
            for one in data["samples"]["problems"]
        )
        assert entries.count() == solved
        assert set(samples.locator(".meta bdi").all_inner_texts()) == {"correct"}
        samples.get_by_label("Status").select_option(label="any")
        samples.get_by_label("Reward from").fill("0.2")
        samples.get_by_label("to", exact=True).fill("0.9")
        said = samples.locator(".meta b:nth-child(2)").all_inner_texts()
        rewards = [float(text.removeprefix("reward ")) for text in said]
        assert rewards
        assert all(0.2 <= reward <= 0.9 for reward in rewards)
        samples.get_by_label("Reward from").fill("")
        samples.get_by_label("to", exact=True).fill("")
        name = data["per_problem"]["ids"][5]
        samples.get_by_label("Problem").fill(name.upper())
        assert entries.count() == 1
        group = data["samples"]["problems"][5]["runs"]
        for label, depth in (("all drawn", 16), ("4", 4)):
            samples.get_by_label("Mark the best of the first").select_option(label=label)
            marked = samples.locator(".sample.best .meta b:first-child").all_inner_texts()
            firsts = samples.locator(".block > .sample:first-of-type .meta b:first-child")
            assert firsts.all_inner_texts() == marked
            assert marked == [f"sample {dict(map(tuple, g['best']))[depth]}" for g in group]
            assert samples.locator(".sample.best .flag").first.inner_text() == f"best of {depth}"


def test_a_point_and_a_set_open_their_samples(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        data = json.loads(page.locator("#data").text_content())
        figure = page.locator("#problems figure").nth(1)
        chosen = data["solved"]["sets"][0]["problems"]
        figure.locator(".bars button").first.click()
        ids = page.locator("#samples .problems .id").all_inner_texts()
        assert sorted(ids) == sorted(data["per_problem"]["ids"][place] for place in chosen)
        page.get_by_role("button", name="Show all problems again").click()
        assert page.locator("#samples .problems li").count() == 24
        chart = page.locator("#problems .chart").first
        chart.focus()
        page.keyboard.press("ArrowRight")
        spoken = page.locator("#live").inner_text()
        page.keyboard.press("Enter")
        opened_ids = page.locator("#samples .problems .id").all_inner_texts()
        assert any(each in spoken for each in opened_ids)


def test_theme_follows_the_system_and_can_be_chosen(browser: Any, report: Path) -> None:
    def paper(page: Any) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    with opened(browser, report, color_scheme="dark") as page:
        dark = paper(page)
        page.locator("#theme").click()
        light = paper(page)
        assert light != dark
        page.locator("#theme").click()
        assert paper(page) == dark
        page.emulate_media(color_scheme="light")
        page.locator("#theme").click()
        assert paper(page) == light


def test_page_fits_screens_of_all_sizes(browser: Any, report: Path) -> None:
    with opened(browser, report, viewport={"width": 375, "height": 812}) as page:
        tables = page.locator("#summary .scroll:visible")
        assert tables.count() == 1
        assert tables.first.evaluate("(e) => e.scrollWidth <= e.clientWidth")
        data = json.loads(page.locator("#data").text_content())
        last = data["measures"][0]["curves"][-1]
        assert f"{last['mean'][-1]:.3f}" in tables.first.inner_text()
        for width in (375, 320, 768, 1600):
            page.set_viewport_size({"width": width, "height": 812})
            wait_until(page, FITTED)
            assert page.evaluate("document.documentElement.scrollWidth") == width


def test_printing_is_light_whole_and_then_as_before(browser: Any, report: Path) -> None:
    with opened(browser, report, color_scheme="dark") as page:
        before = page.evaluate("document.documentElement.dataset.theme")
        paper = page.pdf(format="A4")
        assert paper.startswith(b"%PDF")
        assert len(paper) > 20_000
        assert before == page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_controls_have_names_and_tables_have_heads(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate(TWICE) == []
        for table in page.locator("table").all():
            assert table.locator("thead th").count() > 1
        assert page.locator("html").get_attribute("lang") == "en"


def hostile(folder: Path) -> Path:
    """A report in which every text that can come from outside is an attack."""
    rows: list[dict[str, Any]] = [
        {
            "problem_id": f"{p} {ATTACKS[p]}",
            "sample_id": s,
            "prompt": ATTACKS[(p + s) % len(ATTACKS)],
            "completion": ATTACKS[p] * (1 + s),
            "answer": ATTACKS[-1 - p] + str(s),
            "reward": float(s == p % 3),
            "status": ATTACKS[(p + 1) % len(ATTACKS)],
            "finish_reason": ATTACKS[0],
            "model": ATTACKS[1],
            "task": ATTACKS[2],
            "sampling": {ATTACKS[3]: ATTACKS[4]},
            "messages": None
            if s < 2
            else [
                {"role": ATTACKS[p], "name": ATTACKS[-1 - p], "content": ATTACKS[p - 1] * 100},
                {"role": "assistant", "content": ATTACKS[p]},
            ],
            "ended_by": ATTACKS[p],
            "turns": 1,
            "tool_errors": 1,
        }
        for p in range(len(ATTACKS))
        for s in range(3)
    ]
    rows[0]["completion"] = "<b>" + "x" * 10_000_000 + "</b>"
    path = write_lines(folder / "a.jsonl", rows)
    other = write_lines(folder / "b.jsonl", [row | {"reward": 1.0 - row["reward"]} for row in rows])
    sources = load([f"{ATTACKS[2]}={path}", f"{ATTACKS[0]}={other}"])
    return make(sources, folder / "hostile.html", title=ATTACKS[1], resamples=400).page


def test_nothing_in_the_data_can_run_or_be_asked_for(browser: Any, tmp_path: Path) -> None:
    path = hostile(tmp_path)
    assert path.stat().st_size < 1_000_000  # ten megabytes of one completion were cut
    with opened(browser, path) as page:
        entries = page.locator("#samples .problems li button")
        assert entries.count() == len(ATTACKS)
        for entry in entries.all():
            entry.click()
        for summary in page.locator("summary").all():
            summary.click()
        for box in page.locator("select").all():
            for option in range(box.locator("option").count()):
                box.select_option(index=option)
            box.select_option(index=0)
        for chart in page.locator(".chart").all():
            chart.focus()
            page.keyboard.press("ArrowRight")
        assert page.evaluate("window.pwned === undefined")
        foreign = "main script, main img, main svg, main iframe, main style, main link"
        assert page.locator(foreign).count() == 0
        assert page.evaluate(HANDLERS) == []
        assert page.locator("h1").inner_text() == ATTACKS[1]
        entries.first.click()
        text = page.locator("#samples").inner_text()
        assert "9 997 007 of 10 000 007 characters are left out here" in text.replace("\u202f", " ")
        entries.last.click()
        written = page.locator("#samples pre").last.inner_text()
        assert "right ⟨U+202E⟩⟨U+2066⟩to left⟨U+2069⟩ ⟨U+0000⟩ nul ⟨U+001B⟩[31m" in written
        shown = page.evaluate("document.body.innerText")
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", shown)


def test_a_trajectory_is_a_conversation(browser: Any, tmp_path: Path) -> None:
    page_of_run = make(
        load([str(make_run(tmp_path / "run", talk=True))]), tmp_path / "run.html"
    ).page
    with opened(browser, page_of_run) as page:
        card = page.locator(".sample").first
        assert "2 turns, ended by: environment" in card.inner_text()
        assert "score 0.25" in card.inner_text()
        assert card.locator(".flag").first.inner_text() == "1 tool error"
        turns = card.locator("details.turn")
        assert turns.locator("summary b").all_inner_texts() == ["model", "tool", "model"]
        assert [turn.get_attribute("open") for turn in turns.all()] == ["", None, ""]
        reply = turns.nth(1).locator("pre")
        reply.wait_for(state="hidden")
        turns.nth(1).locator("summary").click()
        reply.wait_for(state="visible")
        assert reply.inner_text() == "higher <b>than</b> " * 20
        figures = page.locator("#training figure h3").all_inner_texts()
        for name in ("Turns", "Tool errors", "Ended by: environment", "Ended by: turns"):
            assert any(title.endswith(f". {name}") for title in figures)


def test_page_with_one_run_one_sample_and_no_text(browser: Any, tmp_path: Path) -> None:
    rows = [{"problem_id": p, "reward": p % 2} for p in range(12)]
    sources = load([str(write_lines(tmp_path / "least.jsonl", rows))])
    path = make(sources, tmp_path / "least.html", resamples=400).page
    with opened(browser, path) as page:
        titles = page.locator("section h2").all_inner_texts()
        assert "Difference" not in titles
        assert "Best of k" in titles
        assert "0.500" in page.locator("#summary").inner_text()


def test_page_of_training_alone(browser: Any, tmp_path: Path) -> None:
    sources = load([str(make_run(tmp_path / "a", samples=False))])
    path = make(sources, tmp_path / "training.html", resamples=400).page
    with opened(browser, path) as page:
        titles = page.locator("section h2").all_inner_texts()
        assert titles == ["Summary", "Training", "Settings", "Methods and sources"]
        assert "No-signal share" in page.locator("#training").inner_text()
